"""One side of a transfer: a cache, what fills it and decodes from it, and the prefill server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.bench.serve.executor import Recorder, Requests, StepTokens
from dsv4kv.bench.serve.inputs import EntryChooser, Queries
from dsv4kv.bench.serve.operations import Reads
from dsv4kv.bench.transfer.frames import Wire
from dsv4kv.bench.transfer.manifest import Memory, make_manifest, share
from dsv4kv.bench.transfer.sender import Offer, Sender
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SideSection, TransferConfig
from dsv4kv.errors import CacheError, Dsv4kvError, StoreUnavailable
from dsv4kv.ops.registry import load_backend


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


class Prefill(Sender):
    """A cache that computes the prompts that receivers ask for."""

    def __init__(self, config: TransferConfig, address: tuple[str, int], token: str) -> None:
        """Build the cache and listen; raises ``ConfigError``, ``StoreFull``."""
        self._config, self._cache_lock = config, Lock()
        shared = config.transport != "tcp"
        self._side = Side(cache_of(config, config.prefill, 2), shared=shared, crowded=True)
        self._side.draw()
        self._slots: dict[int, int] = {}
        self._owners: dict[int, Wire] = {}
        try:
            super().__init__(self._side.memory, address, token=token, timeout_s=config.timeout_s)
        except BaseException:
            self.forget()
            raise

    def answer(self, message: dict[str, Any], wire: Wire) -> dict[str, Any]:
        match message:
            case {"op": "compute"}:
                return {"request": self._compute(0, self._config.tokens, wire)}
            case {"op": "hold"}:
                return {"request": self._compute(None, self._config.timed_tokens, wire)}
            case {"op": "mapped"}:
                self.forget()
                return {}
            case {"op": "decode", "request": int(request)}:
                steps = self._config.decode_steps
                with self._cache_lock:
                    return {"digest": self._side.decode(self._slot(request), 0, steps)}
            case {"op": "release", "request": int(request)}:
                with self._cache_lock:
                    self._slot(request)
                    del self._owners[request]
                    self._release_unowned(request)
                return {}
        return super().answer(message, wire)

    def forget(self) -> None:
        """The shared memory needs its name no more."""
        if self._side.memory.segment:
            self._side.memory.segment.forget()

    def close(self) -> None:
        super().close()
        self.forget()

    def gone(self, wire: Wire) -> None:
        with self._cache_lock:
            for request in [each for each, owner in self._owners.items() if owner is wire]:
                del self._owners[request]
                self._release_unowned(request)

    def _release_unowned(self, request: int) -> None:
        """Free the blocks of a request without an owner, once it is computed."""
        if request not in self._owners and self._slots[request] >= 0:
            self._side.release(self._slots.pop(request))

    def _compute(self, serial: int | None, tokens: int, wire: Wire) -> int:
        with self._cache_lock:
            if self._slots:
                raise CacheError("a prompt is there already: release it first.")
            offer, request = self.offer()
            self._slots[request], self._owners[request] = -1, wire

        def run() -> None:
            with self._cache_lock:
                try:
                    self._slots[request] = self._side.prefill(serial, tokens, offer)
                    self._release_unowned(request)
                except Dsv4kvError as error:
                    del self._slots[request]
                    self._owners.pop(request, None)
                    offer.fail(str(error))

        Thread(target=run, daemon=True).start()
        return request

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
    """Serve until interrupted; ``on_listening`` is called with the address."""
    with Prefill(config, address, token) as prefill:
        on_listening(*prefill.address)
        prefill.wait()


@dataclass
class Seen:
    """Hashes everything that decode steps read: equal bits, equal digest."""

    _hash: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def digest(self) -> str:
        return str(self._hash.hexdigest())

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        self._add(out)

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        self._add(indices, out)

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: Queries, found: Reads
    ) -> None:
        self._add(found.attended, found.lse)

    def _add(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._hash.update(tensor.contiguous().view(torch.uint8).numpy().data)


class Side:
    """A cache, filled with what is drawn from a seed: equal on both sides."""

    def __init__(
        self, config: BenchConfig, *, shared: bool = False, crowded: bool = False
    ) -> None:
        """Build it; raises ``ConfigError``, or ``StoreFull`` for too little shared memory.

        ``shared``: its pools are in shared memory. ``crowded``: another prompt is interleaved
        with each, so that blocks are scattered.
        """
        torch.set_num_threads(1)
        plan = plan_from(config)
        check_data_path(plan)
        self._seed, self._chunk_tokens = config.measure.seed, config.workload.step_tokens
        manager = build_manager(config, plan, None)
        self.memory = Memory(manager, share(manager) if shared else None)
        self._manager, self._crowded = manager, crowded
        drive = build_drive(config, manager, Recorder(), load_backend("cpu"))
        self._executor, self._requests = drive.executor, Requests(manager, drive.executor)

    def prefill(self, serial: int | None, tokens: int, offer: Offer | None = None) -> int:
        """Compute a prompt in a slot of its own; ``offer`` is called with each layer's progress.

        Without a serial nothing is computed: the request has blocks with arbitrary bytes.
        """
        torch.set_num_threads(1)  # of this thread, which need not be the first one
        slot = self._requests.admit()
        other = self._requests.admit() if self._crowded else None
        for start in range(0, tokens, self._chunk_tokens):
            end = min(start + self._chunk_tokens, tokens)
            if other is not None:
                prepare_forward(self._manager, [other], [start], [end])
            if serial is None:
                prepare_forward(self._manager, [slot], [start], [end])
                continue
            step = self._requests.step(slot, serial, end)
            if offer is not None:
                offer.show(make_manifest(self.memory, slot, end, prefix=start, complete=False))
            for layer in self._executor.layers:
                replace(self._executor, layers=[layer]).prefill(step)
                if offer is not None:
                    offer.reach(layer.schema.layer.layer_idx, end)
        if other is not None:
            self.release(other)
        if offer is not None:
            offer.show(make_manifest(self.memory, slot, tokens))
        return slot

    def draw(self) -> None:
        """Fill all pages with random bytes: unwritten memory has no physical pages."""
        random = np.random.default_rng(self._seed)
        for region in self.memory.regions:
            pool = np.frombuffer(region, dtype=np.uint8)
            pool[:] = np.frombuffer(random.bytes(len(pool)), dtype=np.uint8)

    def decode(self, slot: int, serial: int, steps: int) -> str:
        """Decode some steps; returns a digest of all they read and of the rows at the end."""
        seen = Seen()
        chooser = EntryChooser(self._executor.outputs.index_topk, self._seed)
        executor = replace(self._executor, observer=seen, chooser=chooser)
        Requests(self._manager, executor).decode(slot, serial, steps, observed=True)
        return f"{seen.digest()}:{self.rows(slot)}"

    def rows(self, slot: int) -> str:
        """A digest of every row that a request needs, whatever pages they are in."""
        memory, tokens = self.memory, int(self._manager.tokens[slot])
        found = blake2b(digest_size=16)
        for family in memory.families.values():
            rows = memory.rows(family, tokens)
            ids = memory.units(family, slot, tokens)
            found.update("".join(memory.digests(family, ids, rows, tokens + 1)).encode())
        return found.hexdigest()

    def release(self, slot: int) -> None:
        """Forget a request."""
        self._requests.release(slot)
