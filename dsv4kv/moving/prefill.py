"""The prefill side: computes prompts when it is asked to, and lets their caches be read."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.transfer import SideSection, TransferConfig
from dsv4kv.errors import CacheError, Dsv4kvError, StoreUnavailable
from dsv4kv.moving.frames import Wire
from dsv4kv.moving.memory import Memory
from dsv4kv.moving.sender import Offer, Sender
from dsv4kv.moving.side import Side
from dsv4kv.moving.transports import MooncakeMemory, NixlMemory


def cache_of(config: TransferConfig, section: SideSection, requests: int) -> BenchConfig:
    """A side's cache as ``dsv4kv bench`` would be asked for it."""
    tokens = max(config.tokens + config.decode_steps, config.timed_tokens) + section.draft_tokens
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": {
                "preset": config.model,
                "layers": config.layers,
                "draft_layers": config.draft_layers,
                "formats": section.formats,
            },
            "cache": {
                "block_tokens": section.block_tokens,
                "max_context_tokens": tokens,
                "num_slots": requests,
                "state": config.state,
            },
            "workload": {
                "concurrency": requests,
                "step_tokens": config.chunk_tokens,
                "step": "gather",
                "speculative": {"draft_tokens": section.draft_tokens},
            },
            "measure": {"seed": config.seed},
        }
    )


Registered = NixlMemory | MooncakeMemory
_REGISTER: dict[str, Callable[[Memory, str], Registered]] = {
    "nixl": lambda memory, here: NixlMemory(memory),
    "mooncake": MooncakeMemory,
}
"""Libraries that let others read a cache's memory, on a machine of that name."""


class Prefill:
    """A cache, and the sender that others read it through.

    Attributes:
        sender: Where it listens.
    """

    def __init__(self, config: TransferConfig, address: tuple[str, int], token: str) -> None:
        """Build the cache and listen; raises ``ConfigError``, ``StoreFull``."""
        self._config, self._lock = config, Lock()
        shared = config.transport != "tcp"
        self._side = Side(cache_of(config, config.prefill, 2), shared=shared, crowded=True)
        self._side.draw()
        self._slots: dict[int, int] = {}
        self._owners: dict[int, Wire] = {}
        self._registered: dict[tuple[str, str], Registered] = {}
        try:
            self.sender = Sender(
                self._side.memory,
                address,
                token=token,
                timeout_s=config.timeout_s,
                on_ask=self._answer,
                on_gone=self._gone,
            )
        except BaseException:
            self.forget()
            raise

    def _answer(self, message: dict[str, Any], wire: Wire) -> dict[str, Any]:
        match message:
            case {"op": "compute"}:
                return {"request": self._compute(self._prefill, wire)}
            case {"op": "hold"}:
                return {"request": self._compute(self._hold, wire)}
            case {"op": "meet", "by": str(library)} if library in _REGISTER:
                return self._register(library, wire.here).describe()
            case {"op": "mapped"}:
                self.forget()
                return {}
            case {"op": "decode", "request": int(request)}:
                steps = self._config.decode_steps
                with self._lock:
                    return {"digest": self._side.decode(self._slot(request), 0, steps)}
            case {"op": "release", "request": int(request)}:
                with self._lock:
                    self._slot(request)
                    del self._owners[request]
                    self._release_unowned(request)
                return {}
        raise StoreUnavailable(f"{str(message['op'])[:40]!r} is not asked here.")

    def _register(self, library: str, here: str) -> Registered:
        with self._lock:
            known = self._registered.get((library, here))
            if known is None:
                known = _REGISTER[library](self._side.memory, here)
                self._registered[library, here] = known
        return known

    def forget(self) -> None:
        """The shared memory needs its name no more."""
        if self._side.memory.segment:
            self._side.memory.segment.forget()

    def _prefill(self, offer: Offer) -> int:
        return self._side.prefill(0, self._config.tokens, offer)

    def _hold(self, offer: Offer) -> int:
        return self._side.hold(self._config.timed_tokens, offer)

    def _gone(self, wire: Wire) -> None:
        """Whoever asked for a request has hung up: nobody will read it."""
        with self._lock:
            for request in [each for each, owner in self._owners.items() if owner is wire]:
                del self._owners[request]
                self._release_unowned(request)

    def _release_unowned(self, request: int) -> None:
        """Give back the blocks of a request that is nobody's, once it is computed."""
        if request not in self._owners and self._slots[request] >= 0:
            self._side.release(self._slots.pop(request))

    def _compute(self, make: Callable[[Offer], int], wire: Wire) -> int:
        with self._lock:
            if self._slots:
                raise CacheError("a prompt is there already: release it first.")
            offer, request = self.sender.offer()
            self._slots[request], self._owners[request] = -1, wire
        Thread(target=self._run, args=(make, offer, request), daemon=True).start()
        return request

    def _run(self, make: Callable[[Offer], int], offer: Offer, request: int) -> None:
        with self._lock:
            try:
                self._slots[request] = make(offer)
                self._release_unowned(request)
            except Dsv4kvError as error:
                del self._slots[request]
                self._owners.pop(request, None)
                offer.fail(str(error))

    def _slot(self, request: int) -> int:
        if self._slots.get(request, -1) < 0:
            raise StoreUnavailable(f"there is no request {request}.")
        return self._slots[request]


def serve(
    config: TransferConfig,
    address: tuple[str, int],
    token: str,
    on_listening: Callable[[str, int], None],
) -> None:
    """Serve until interrupted; ``on_listening`` hears where."""
    prefill = Prefill(config, address, token)
    try:
        with prefill.sender as sender:
            on_listening(*sender.address)
            sender.wait()
    finally:
        prefill.forget()
