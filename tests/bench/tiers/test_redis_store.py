"""A real server holds objects; one that is gone, silent, full or none at all is a sentence."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dsv4kv.bench.tiers.redis_store import RedisStore
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from tests.bench.tiers.kinds import FLASH, NEEDS_REDIS, content, poisoned, redis_server

pytest.importorskip("redis")
MINE, OTHER = "aa/x.c4", "aa/y.c4"
SIZE = 37_440
CALLS: dict[str, Callable[[RedisStore], object]] = {
    "put": lambda store: store.put([MINE], [content(1, SIZE)]),
    "get": lambda store: store.get([MINE], [poisoned(SIZE)]),
    "exists": lambda store: store.exists([MINE]),
    "delete": lambda store: store.delete([MINE]),
}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path / "socket") as url:
        yield url


@NEEDS_REDIS
def test_what_was_put_anew_since_it_was_found_damaged_stays(url: str) -> None:
    with closing(RedisStore(url, FLASH)) as store:
        store.put([MINE], [content(1, SIZE)])
        store._remove(MINE, b"what was there before")
        assert store.get([MINE], [poisoned(SIZE)]).all()


@pytest.mark.parametrize("call", CALLS)
@NEEDS_REDIS
def test_a_server_that_is_gone_is_a_sentence_and_one_that_is_back_answers(
    call: str, tmp_path: Path
) -> None:
    with redis_server(tmp_path / "socket") as url:
        store = RedisStore(url, FLASH)
        store.put([MINE], [content(1, SIZE)])
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"redis at .*socket: no answer"):
            CALLS[call](store)
    (tmp_path / "socket").unlink(missing_ok=True)
    with redis_server(tmp_path / "socket"):
        CALLS[call](store)
        store.put([MINE], [content(1, SIZE)])
        assert store.get([MINE], [poisoned(SIZE)]).all()
        store.close()


@pytest.mark.parametrize("call", CALLS)
@NEEDS_REDIS
def test_a_server_that_is_silent_is_waited_for_no_longer_than_its_timeout(
    call: str, url: str
) -> None:
    with closing(RedisStore(url, FLASH, timeout_s=1.0)) as store:
        store._client.client_pause(1500)
        with pytest.raises(StoreUnavailable, match=r"no answer that can be used \(Timeout"):
            CALLS[call](store)
        time.sleep(1.0)
        store.put([MINE], [content(1, SIZE)])
        room = poisoned(SIZE)
        assert store.get([MINE], [room]).all()  # nothing that was late is taken for an answer
        assert (room == content(1, SIZE)).all()


@NEEDS_REDIS
def test_a_server_without_room_is_full_and_keeps_what_it_has(url: str) -> None:
    with closing(RedisStore(url, FLASH)) as store:
        store.put([MINE], [content(1, SIZE)])
        store._client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreFull, match="raise maxmemory"):
            store.put([str(number) for number in range(100)], [content(2, SIZE)] * 100)
        assert store.get([MINE], [poisoned(SIZE)]).all()


GARBAGE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "not even text": bytes(range(128, 256)) + b"\r\n",
    "more than there is": b"$999999999999\r\nxx",
    "a length that is none": b"$twelve\r\n",
    "hung up": b"",
}


ANSWERS = {
    "a value without end": (b"$99999999999\r\n", b"x" * 65_536, "longer than"),
    "a line without end": (b"+", b"a" * 65_536, "longer than"),
    "lists without end": (b"*99999999\r\n", b"*0\r\n" * 9_999, "longer than|not end"),
    "lists in lists": (b"*1\r\n" * 100_000, b"", "recursion"),
    "byte by byte": (b"+", b"a", "does not end"),
    "no password": (b"-NOAUTH Authentication required.\r\n", b"", "NOAUTH|Authentication"),
    "moved": (b"-MOVED 3999 127.0.0.1:6381\r\n", b"", "MOVED|3999"),
    "full": (b"-OOM command not allowed when used memory\r\n", b"", "used memory"),
}


@contextmanager
def answering(first: bytes, rest: bytes = b"", *, greets: bool = True) -> Iterator[str]:
    """The URL of a server that greets as Redis does, and then answers so, ``rest`` for ever."""
    ended = threading.Event()

    def serve(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            while (first or greets) and (asked := peer.recv(2**20)):
                if greets and (b"CLIENT" in asked or b"PING" in asked):
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


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_stranger_on_the_port_is_a_sentence(kind: str) -> None:
    said = pytest.raises(StoreUnavailable, match=r"redis at 127\.0\.0\.1:\d+: no answer")
    with answering(GARBAGE[kind], greets=False) as url, said:
        RedisStore(url, FLASH, timeout_s=0.2)


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_is_bounded_and_its_error_is_named(kind: str) -> None:
    first, rest, said = ANSWERS[kind]
    memory, begun_s = psutil.Process().memory_info, time.monotonic()
    with answering(first, rest) as url, closing(RedisStore(url, FLASH, timeout_s=0.2)) as store:
        before = memory().rss
        with pytest.raises(StoreUnavailable, match=said):
            store.get(["aa/x.c4"], [poisoned(SIZE)])
        assert memory().rss - before < 2**26
    assert time.monotonic() - begun_s < 20


def test_passwords_are_not_told() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        RedisStore("somebody:secret@127.0.0.1:1/0", FLASH)
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_address_that_is_none_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="this is no server's address"):
        RedisStore("ftp://somewhere", FLASH)


def test_without_the_package_the_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'dsv4kv\[redis\]'"):
        RedisStore("localhost:6379", FLASH)
