"""Frames on a stream socket: a mark, a kind, a length with a limit, and a deadline for all of it.

The other end may be a stranger, slow, or gone: nothing waits for longer than its
deadline, and nothing is allocated that a length alone asks for.
"""

import hmac
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from pydantic_core import from_json

from dsv4kv.errors import ConfigError, StoreUnavailable

LIMIT_BYTES = 64 * 2**20
"""Longest frame that is read whole; data go straight to where they belong, in any length."""
SLOWEST_BYTES_PER_S = 1e6
"""Data that come slower than this do not come."""
HANDSHAKE_S = 5.0
_GREETING_BYTES = 4096

MESSAGE, READ, DATA = b"M", b"R", b"D"
_HEADER = struct.Struct("!4scQ")
_MARK = b"dkv1"
_MOST_BUFFERS = 512  # of one call; IOV_MAX is 1,024 on Linux and macOS
_MOST_BYTES = 2**18  # of one call: a socket takes less at once, and every buffer named costs time


class Wire:
    """Frames over one connection; ``peer`` is who is at the other end, for sentences.

    A frame takes ``timeout_s`` at most, and its data their time on top.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket, whose other end may be anybody until it has greeted."""
        self._socket = connection
        self.timeout_s, self.limit_bytes = HANDSHAKE_S, _GREETING_BYTES
        connection.setblocking(True)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = "{}:{}".format(*connection.getpeername()[:2])
        else:
            self.peer = "the other process"

    def trust(self, timeout_s: float) -> None:
        """The other end has greeted: it may send long frames, and take ``timeout_s`` for one."""
        self.timeout_s, self.limit_bytes = timeout_s, LIMIT_BYTES

    def close(self) -> None:
        """Hang up, also on a call that waits."""
        with suppress(OSError):  # it was gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send_message(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self.send(MESSAGE, [memoryview(json.dumps(message).encode())])

    def receive_message(self) -> dict[str, Any]:
        """Receive a message; raises ``StoreUnavailable`` for anything else, such as an error."""
        return self.check(self.receive(MESSAGE))

    def check(self, payload: bytes) -> dict[str, Any]:
        """A message that is no error; raises ``StoreUnavailable`` with what the other end says."""
        message = self.parse(payload)
        if "error" in message:
            raise StoreUnavailable(f"{self.peer} says: {str(message['error'])[:500]}")
        return message

    def parse(self, payload: bytes) -> dict[str, Any]:
        """A message as it was sent; raises ``StoreUnavailable`` for anything else."""
        try:
            message = from_json(payload)
        except ValueError:  # half a character, which json.loads would let through, is one, too
            raise StoreUnavailable(f"{self.peer} sent a message that is no JSON.") from None
        if not isinstance(message, dict):
            raise StoreUnavailable(f"{self.peer} sent a message that is no object.")
        return message

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and receive the answer."""
        self.send_message(message)
        return self.receive_message()

    def send(self, kind: bytes, views: Sequence[memoryview]) -> None:
        """Send a frame whose payload is in ``views``, from where it is."""
        size = sum(map(len, views))
        header = memoryview(_HEADER.pack(_MARK, kind, size))
        self._move(self._socket.sendmsg, [header, *views], self._deadline(size))

    def receive(self, kind: bytes) -> bytes:
        """A whole frame of at most ``limit_bytes``."""
        return self.receive_any((kind,))[1]

    def receive_any(self, kinds: Sequence[bytes]) -> tuple[bytes, bytes]:
        """A whole frame of one of the kinds: which, and what is in it."""
        kind, size = self._header(kinds)
        if size > self.limit_bytes:
            raise StoreUnavailable(
                f"{self.peer} announces a frame of {size:,} B; {self.limit_bytes:,} are allowed."
            )
        found, deadline = bytearray(), self._deadline(size)
        while len(found) < size:  # grows as it comes: a length costs the peer its bytes
            part = memoryview(bytearray(min(size - len(found), 2**20)))
            self._move(self._fill, [part], deadline)
            found += part
        return kind, bytes(found)

    def receive_into(self, views: Sequence[memoryview]) -> None:
        """A frame of data, straight to where it belongs; it must be as long as that."""
        size, wanted = self._header((DATA,))[1], sum(map(len, views))
        if size != wanted:
            raise StoreUnavailable(f"{self.peer} sends {size:,} B and was asked for {wanted:,} B.")
        self._move(self._fill, views, self._deadline(size))

    def _header(self, kinds: Sequence[bytes]) -> tuple[bytes, int]:
        header = bytearray(_HEADER.size)
        self._move(self._fill, [memoryview(header)], self._deadline(0))
        mark, found, size = _HEADER.unpack(header)
        if mark != _MARK or found not in kinds:
            raise StoreUnavailable(f"{self.peer} does not speak as dsv4kv does here: hung up.")
        return found, int(size)

    def _fill(self, views: Sequence[memoryview]) -> int:
        return self._socket.recvmsg_into(views)[0]

    def _deadline(self, size: int) -> float:
        return monotonic() + self.timeout_s + size / SLOWEST_BYTES_PER_S

    def _move(
        self,
        call: Callable[[Sequence[memoryview]], int],
        views: Sequence[memoryview],
        deadline: float,
    ) -> None:
        """Let ``call`` go through all views, a few hundred at a time."""
        left = [view for view in views if len(view)]
        first = 0
        # Once, not for every call: who stops is hung up on after twice the time at most.
        with suppress(OSError):  # closed: the call itself will say so
            self._socket.settimeout(max(deadline - monotonic(), 1e-3))
        while first < len(left):
            try:
                moved = call(_batch(left, first))
            except TimeoutError:
                raise StoreUnavailable(
                    f"{self.peer} did not answer in time ({self.timeout_s:g} s, and its data at "
                    f"{SLOWEST_BYTES_PER_S / 1e6:g} MB/s): hung up."
                ) from None
            except (OSError, ValueError) as error:  # ValueError: closed by another thread
                raise StoreUnavailable(f"the connection to {self.peer} broke: {error}.") from None
            if not moved:
                raise StoreUnavailable(f"{self.peer} hung up in the middle.")
            if monotonic() > deadline:
                raise StoreUnavailable(f"{self.peer} is too slow: hung up.")
            while first < len(left) and moved >= len(left[first]):
                moved -= len(left[first])
                first += 1
            if moved:
                left[first] = left[first][moved:]


def _batch(views: Sequence[memoryview], first: int) -> Sequence[memoryview]:
    """As many views as one call can move."""
    end, size = first, 0
    while end < len(views) and end - first < _MOST_BUFFERS and size < _MOST_BYTES:
        size += len(views[end])
        end += 1
    return views[first:end]


def greet(wire: Wire, token: str) -> None:
    """Prove to the sender that both know the token, and let it prove the same."""
    nonce = secrets.token_hex(16)
    given = _text(wire.receive_message(), "challenge")
    answer = wire.ask({"answer": _proof(token, "receiver", given), "challenge": nonce})
    _check(wire, answer, _proof(token, "sender", nonce))


def admit(wire: Wire, token: str, on_proved: Callable[[], None] = lambda: None) -> None:
    """The sender's half of ``greet``: nothing else is said before.

    ``on_proved`` is called before the receiver learns that it may ask; it raises to refuse it.
    """
    nonce = secrets.token_hex(16)
    answer = wire.ask({"challenge": nonce})
    _check(wire, answer, _proof(token, "receiver", nonce))
    theirs = _text(answer, "challenge")
    on_proved()
    wire.send_message({"answer": _proof(token, "sender", theirs)})


def check_token(host: str, token: str) -> None:
    """Raise ``ConfigError`` where a token is needed and none is given."""
    if not token and not is_loopback(host):
        raise ConfigError(
            f"{host} is not only this machine: set the same secret on both sides in "
            "DSV4KV_TRANSFER_TOKEN, at least 16 characters."
        )
    if token and len(token) < 16:
        raise ConfigError("DSV4KV_TRANSFER_TOKEN is too short: 16 characters at least.")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _check(wire: Wire, answer: dict[str, Any], expected: str) -> None:
    if not hmac.compare_digest(_text(answer, "answer").encode(), expected.encode()):
        raise StoreUnavailable(
            f"{wire.peer} does not know the token: set DSV4KV_TRANSFER_TOKEN alike on both sides."
        )


def _text(message: dict[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise StoreUnavailable("the other end does not greet as dsv4kv does.")
    return value


def _proof(token: str, role: str, challenge: str) -> str:
    return hmac.new(os.fsencode(token), f"{role}:{challenge}".encode(), "sha256").hexdigest()
