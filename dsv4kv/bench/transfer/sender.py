"""A sender: a cache whose memory others read, a request at a time, as soon as rows are there."""

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from dsv4kv.bench.transfer.frames import DATA, MESSAGE, READ, Wire, admit, check_token
from dsv4kv.bench.transfer.manifest import Manifest, Memory, parse_places, stretches_of
from dsv4kv.errors import ConfigError, Dsv4kvError, StoreUnavailable

_MOST_CONNECTIONS = 32  # of receivers that have greeted
_MOST_STRANGERS = 64  # the longest silent goes for the next
_MOST_PROBLEMS = 100  # strangers may come for ever
_MOST_RAW_BYTES = 2**30


class Offer:
    """A request that is being computed: how far every layer is, its chunks, and in the end it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens: dict[int, int] = {}  # by layer
        self._manifests: dict[int | None, Manifest] = {}  # by prefix; at None the whole
        self._failure = ""

    def show(self, manifest: Manifest) -> None:
        """A chunk of the prompt is being computed in these pages; or all of it is there."""
        with self._changed:
            self._manifests[None if manifest.complete else manifest.prefix] = manifest
            self._changed.notify_all()

    def reach(self, layer: int, tokens: int) -> None:
        """A layer has the rows of ``tokens`` tokens."""
        with self._changed:
            self._tokens[layer] = tokens
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """It will not be computed."""
        with self._changed:
            self._failure = reason
            self._changed.notify_all()

    def wait_for(self, layer: int, tokens: int, timeout_s: float) -> None:
        """Wait until a layer has the rows of ``tokens`` tokens."""
        self._wait(lambda: self._tokens.get(layer, -1) >= tokens, timeout_s)

    def manifest(self, prefix: int | None, timeout_s: float) -> Manifest:
        """Wait for the chunk after ``prefix`` tokens, or the whole, which follows all chunks."""
        self._wait(lambda: prefix in self._manifests, timeout_s)
        return self._manifests.get(prefix) or self._manifests[None]

    def _wait(self, ready: Callable[[], bool], timeout_s: float) -> None:
        def over() -> bool:
            return bool(self._failure) or None in self._manifests or ready()

        with self._changed:
            if not self._changed.wait_for(over, timeout_s):
                raise StoreUnavailable(f"the prompt was not computed within {timeout_s:g} s.")
        if self._failure:
            raise StoreUnavailable(f"the prompt was not computed: {self._failure}")


class Sender:
    """Serves a cache's memory to receivers that know the token.

    Attributes:
        address: Host and port where it listens.
        problems: A sentence for each of the last connections that ended badly.
    """

    def __init__(
        self,
        memory: Memory,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        token: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        """Listen; raises ``ConfigError`` without a token where strangers can connect."""
        check_token(address[0], token)
        self._memory, self._token, self._timeout_s = memory, token, timeout_s
        self._offers: list[Offer] = []
        self._wires: set[Wire] = set()
        self._strangers: dict[Wire, None] = {}
        self._lock = threading.Lock()  # of both
        self.problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._raw = b""
        try:
            self._socket = socket.create_server(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}."
            ) from None
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def offer(self) -> tuple[Offer, int]:
        """A new request, and its number: receivers ask for it by that."""
        self._offers.append(Offer())
        return self._offers[-1], len(self._offers) - 1

    def wait(self) -> None:
        """Wait until it is closed."""
        self._thread.join()

    def close(self) -> None:
        """Hang up on everybody."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        self._thread.join(self._timeout_s)
        with self._lock:
            wires = [*self._wires, *self._strangers]
        for wire in wires:
            wire.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with suppress(OSError):  # gone before it was looked at
                wire = Wire(connection)
                with self._lock:
                    if len(self._strangers) == _MOST_STRANGERS:
                        oldest = next(iter(self._strangers))
                        del self._strangers[oldest]
                        oldest.close()
                    self._strangers[wire] = None
                threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        try:
            admit(wire, self._token, partial(self._seat, wire))
            wire.trust(self._timeout_s)
            while self._answer(wire):
                pass
        except Dsv4kvError as error:
            self.problems.append(str(error))
            with suppress(StoreUnavailable):
                wire.send_message({"error": str(error)})
        finally:
            with self._lock:
                self._wires.discard(wire)
                self._strangers.pop(wire, None)
            wire.close()
            self.gone(wire)

    def _seat(self, wire: Wire) -> None:
        """A receiver has its place before it hears that it is one."""
        with self._lock:
            if len(self._wires) == _MOST_CONNECTIONS:
                raise StoreUnavailable(f"{_MOST_CONNECTIONS} receivers are connected.")
            if self._strangers.pop(wire, wire) is None:  # else it was hung up on
                self._wires.add(wire)

    def _answer(self, wire: Wire) -> bool:
        """Answer one frame; False when the receiver says goodbye."""
        kind, payload = wire.receive_any((MESSAGE, READ))
        if kind == READ:
            places = parse_places(payload)
            wire.send(DATA, list(stretches_of(self._memory.regions, places)))
            return True
        match message := wire.parse(payload):
            case {"op": "bye"}:
                return False
            case {"op": "manifest", "request": int(request), "prefix": int() | None as prefix}:
                manifest = self._offer(request).manifest(prefix, self._timeout_s)
                wire.send(MESSAGE, [memoryview(manifest.model_dump_json().encode())])
            case {"op": "wait", "request": int(request), "layer": int(layer), "tokens": int(n)}:
                self._offer(request).wait_for(layer, n, self._timeout_s)
                wire.send_message({})
            case {"op": "raw", "bytes": int(size)} if 0 <= size <= _MOST_RAW_BYTES:
                if len(self._raw) < size:
                    self._raw = b"\1" * size
                wire.send(DATA, [memoryview(self._raw)[:size]])
            case {"op": str()}:
                wire.send_message(self.answer(message, wire))
            case _:
                raise StoreUnavailable("a message that is none of a receiver's.")
        return True

    def _offer(self, request: int) -> Offer:
        if not 0 <= request < len(self._offers):
            raise StoreUnavailable(f"there is no request {request}.")
        return self._offers[request]

    def answer(self, message: dict[str, Any], wire: Wire) -> dict[str, Any]:
        """Answer a question that is not about an offer; raises ``StoreUnavailable``."""
        raise StoreUnavailable(f"{str(message['op'])[:40]!r} is not asked here.")

    def gone(self, wire: Wire) -> None:
        """Forget a receiver that has hung up."""
