"""No answer of a server on Redis's port takes more memory or time than what was asked for."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.redis_store import RedisStore
from tests.tiers.kinds import FLASH, poisoned

pytest.importorskip("redis")
SIZE = 37_440
ANSWERS = {
    "a value without end": (b"$99999999999\r\n", b"x" * 65_536, "longer than"),
    "a line without end": (b"+", b"a" * 65_536, "longer than"),
    "lists without end": (b"*99999999\r\n", b"*0\r\n" * 9_999, "longer than"),
    "lists in lists": (b"*1\r\n" * 100_000, b"", "recursion"),
    "byte by byte": (b"+", b"a", "does not end"),
    "no password": (b"-NOAUTH Authentication required.\r\n", b"", "NOAUTH|Authentication"),
    "moved": (b"-MOVED 3999 127.0.0.1:6381\r\n", b"", "MOVED|3999"),
    "full": (b"-OOM command not allowed when used memory\r\n", b"", "used memory"),
}


@contextmanager
def answering(first: bytes, rest: bytes) -> Iterator[str]:
    """The URL of a server that greets as Redis does, and then answers so, ``rest`` for ever."""
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            while asked := peer.recv(2**20):
                if b"CLIENT" in asked or b"PING" in asked:
                    peer.sendall(b"+OK\r\n" * max(1, asked.count(b"SETINFO")))
                    continue
                peer.sendall(first)
                while rest and not ended.is_set():
                    peer.sendall(rest)
                    time.sleep(0.05 if len(rest) == 1 else 0)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_is_bounded_and_its_error_is_named(kind: str) -> None:
    first, rest, said = ANSWERS[kind]
    memory, begun_s = psutil.Process().memory_info, time.monotonic()
    with (
        answering(first, rest) as url,
        closing(RedisStore(url, FLASH, timeout_s=0.2)) as store,
    ):
        before = memory().rss
        with pytest.raises(StoreUnavailable, match=said):
            store.get(["aa/x.c4"], [poisoned(SIZE)])
        assert memory().rss - before < 2**26
    assert time.monotonic() - begun_s < 20
