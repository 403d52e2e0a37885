"""The proxy passes everything on as it is, and writes down when and how much."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record import Veil
from dsv4kv.record.folder import Record, Recording, read_stream
from dsv4kv.record.proxy import Proxy, _Connection, parse_address
from dsv4kv.record.run import run
from dsv4kv.record.usage import Ends, Prompts
from tests.ports import free_port
from tests.record.serving import (
    PIECES,
    Server,
    proxied,
    proxying,
    recording,
    serving,
    until_open,
)  # fmt: skip

COMPLETIONS = "/v1/chat/completions"


@dataclass
class Scene:
    """A server, a proxy in front of it that writes rows into a folder, and a client."""

    folder: Path
    server: Server
    direct: str
    url: str
    rows: list[Record]
    client: ClientSession

    async def ask(self, *, through: bool = True, **body: Any) -> bytes:
        """The whole answer to a request for tokens."""
        url = self.url if through else self.direct
        async with self.client.post(url + COMPLETIONS, json=body) as answer:
            return await answer.read()

    async def send(self, raw: bytes) -> bytes:
        """What comes over a connection of its own on which these bytes are sent."""
        address = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        return answer

    async def row(self, count: int = 1) -> Record:
        """The last row, once there are so many."""
        for _ in range(3000):
            if len(self.rows) >= count:
                return self.rows[-1]
            await asyncio.sleep(0.01)
        raise AssertionError(self.rows)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    folder = tmp_path / "recording"
    async with (
        serving() as (server, direct),
        proxied(folder, direct) as (url, rows),
        ClientSession() as client,
    ):
        yield Scene(folder, server, direct, url, rows, client)


def in_scene(test: Callable[[Scene], Awaitable[None]]) -> Callable[[Path], None]:
    """A test that is given a scene."""

    def run(tmp_path: Path) -> None:
        async def play() -> None:
            async with scene(tmp_path) as here:
                await test(here)

        asyncio.run(play())

    return run


@in_scene
async def test_an_answer_is_passed_on_and_its_usage_written(here: Scene) -> None:
    for mode in ("fail", "plain", "stream"):
        through = await here.ask(mode=mode, tokens=300, cached=256)
        here.server.seen = 0
        assert through == await here.ask(through=False, mode=mode, tokens=300, cached=256)
        here.server.seen = 0
    row = await here.row(3)
    assert (here.rows[0]["status"], here.rows[0]["end"]) == (503, "done")
    assert (row["input_tokens"], row["output_tokens"]) == (300, PIECES)
    assert (row["cached_tokens"], row["status"], row["end"]) == (256, 200, "done")
    assert row["arrival_s"] <= row["first_s"] <= row["last_s"]
    assert row["id"] == here.rows[1]["id"]


@in_scene
async def test_a_packed_answer_is_passed_on_packed_and_may_be_unpacked_later(here: Scene) -> None:
    add = Ends.add

    def slowly(self: Ends, part: bytes) -> Iterator[None]:
        yield from repeat(None, 5_000)
        yield from add(self, part)

    with patch.object(Ends, "add", slowly):
        async with ClientSession(auto_decompress=False) as client:
            for coding in ("gzip", "br"):
                body = {"mode": "packed", "coding": coding}
                urls = (here.url + COMPLETIONS, here.direct + COMPLETIONS)
                through, direct = [await client.post(url, json=body) for url in urls]
                assert await through.read() == await direct.read()
        await here.row(2)
    told = [(row.get("cached_tokens"), row["end"]) for row in here.rows]
    assert sorted(told, key=str) == [(256, "done"), (None, "done")]


@in_scene
async def test_paths_methods_headers_and_bodies_are_passed_on_as_they_are(here: Scene) -> None:
    path = "/echo/%2e%2e//a%20b/../c?q=%C3%A9&q=2&x"
    body = bytes(range(256)) * 300

    raw = b"PUT %b HTTP/1.1\r\nHost: proxied\r\nX-A: 1\r\nX-a: 2\r\nCookie: c=3\r\n"
    raw += b"Connection: X-Hop, close\r\nX-Hop: 9\r\nX-Odd: \xc3\xa9\r\n"
    raw += b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
    answer = await here.send(raw % (path.encode(), len(body), body))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert content == body
    assert head.splitlines()[0] == b"HTTP/1.1 203 Non-Authoritative Information"
    assert head.count(b"Set-Cookie: ") == 2
    assert f"X-Path: {path}".encode() in head
    passed = dict(here.server.headers)
    assert [value for name, value in here.server.headers if name.lower() == b"x-a"] == [b"1", b"2"]
    assert passed[b"X-Odd"] == "é".encode()
    assert b"X-Hop" not in passed
    assert b"User-Agent" not in passed
    assert here.rows == []
    # trailers of a request are no fields of the next
    answer = await here.send(
        b"POST /echo/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n0\r\nX-Evil: 1\r\n\r\nGET /echo/b HTTP/1.1\r\nHost: a\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert b"X-Path: /echo/a" in answer
    assert b"X-Evil" not in dict(here.server.headers)


@in_scene
async def test_a_request_without_an_answer_is_sent_once(here: Scene) -> None:
    async with here.client.get(here.url + "/cut") as answer:
        assert answer.status == 502
    assert here.server.seen == 1


def test_without_a_server_the_answer_says_so(tmp_path: Path) -> None:
    async def ask(url: str) -> str:
        async with ClientSession() as client, client.post(url + COMPLETIONS, json={}) as answer:
            return f"{answer.status} {await answer.text()}"

    with proxying(tmp_path / "recording", f"http://127.0.0.1:{free_port()}") as (url, rows):
        assert re.match("502 .*cannot be reached", asyncio.run(ask(url)))
    assert [row["end"] for row in rows] == ["server not reached"]


def test_bodies_that_do_not_come_keep_no_place_from_others(tmp_path: Path) -> None:
    port = free_port()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n".encode()

    async def test() -> None:
        async with serving() as (_, direct):
            made = recording(tmp_path / "recording", 128, port, direct)
            await until_open(port)
            lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for line in lines:
                line.sendall(head)
            url = f"http://127.0.0.1:{port}{COMPLETIONS}"
            async with (
                asyncio.timeout(20),
                ClientSession() as client,
                client.post(url, json={}) as answer,
            ):
                assert answer.status == 200
            for line in lines:
                line.close()
            made.send_signal(signal.SIGINT)
            await asyncio.to_thread(made.communicate)
            assert made.returncode == 0

    asyncio.run(test())


def test_a_proxy_needs_128_descriptors(tmp_path: Path) -> None:
    made = recording(tmp_path / "recording", 100, free_port(), "http://127.0.0.1:1")
    said, _ = made.communicate()
    assert made.returncode == 2
    assert "ulimit -n 1024" in said


@in_scene
async def test_a_client_that_leaves_leaves_the_server_too(here: Scene) -> None:
    async with here.client.post(here.url + COMPLETIONS, json={"mode": "stall"}) as answer:
        await answer.content.readany()
        answer.close()
    await asyncio.wait_for(here.server.left.wait(), 30)
    assert (await here.row())["end"] == "client left"


@in_scene
async def test_a_turn_reads_little_of_a_connection(here: Scene) -> None:
    """A turn that parses all that has come lets every other client wait."""
    read, most = _Connection.data_received, 0

    def received(self: _Connection, data: bytes) -> None:
        nonlocal most
        most = max(most, len(data))
        read(self, data)

    with patch.object(_Connection, "data_received", received):
        body = {"mode": "plain", "prompt": "x" * 2**19}
        async with here.client.post(here.url + COMPLETIONS, json=body) as answer:
            await answer.read()
    assert 0 < most <= 2**13


@in_scene
async def test_much_is_passed_on_in_little_memory(here: Scene) -> None:
    import tracemalloc

    tracemalloc.start()
    async with here.client.post(
        here.url + COMPLETIONS, json={"mode": "much", "mib": 32}
    ) as answer:
        size = 0
        async for part in answer.content.iter_any():
            first = size // 2**20 % 251
            assert part[0] == first
            size += len(part)
    assert size == 32 * 2**20
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_prompts_that_are_read_side_by_side_have_pieces_of_one_size(tmp_path: Path) -> None:
    began, goes_on, rows = threading.Event(), threading.Event(), list[Any]()
    with Recording(tmp_path / "recording") as recording:
        address, veil = parse_address("0=http://localhost:1"), Veil(recording.salt)
        first, second = (Proxy(number, address, recording, veil) for number in range(2))
        prompts = first._prompts

        class Child:
            def ask(self, name: str, *given: Any) -> Any:
                began.set()
                row = getattr(prompts, name)(*given)
                assert goes_on.wait(30)
                return row

        def read(proxy: Proxy, text: str, tokens: int) -> None:
            body = bytearray(json.dumps({"prompt": text}).encode())
            exchange: Any = SimpleNamespace(body=body, request=SimpleNamespace(headers={}))
            rows.append(proxy._read_body(exchange, tokens))

        first._long_prompts = Child()  # type: ignore[assignment]
        long = threading.Thread(target=read, args=(first, "a long document " * 3000, 8_000))
        long.start()
        assert began.wait(30)
        read(second, "the quick brown fox " * 200, 1_300)
        goes_on.set()
        long.join()
    assert len({row["place"] for row in rows}) == 1


class Failing:
    """A source that fails when its event is set."""

    def __init__(self, error: Exception) -> None:
        self.due, self._error = threading.Event(), error

    def run(self, stop: threading.Event) -> None:
        if self.due.wait(60):
            raise self._error


@pytest.mark.parametrize("fails", [None, IndexError("no such"), TraceError("no such log")])
def test_where_a_recording_or_a_source_fails_it_is_said_and_requests_are_passed_on(
    fails: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, said, over = list[BaseException](), list[str](), threading.Event()
    beside = [Failing(fails)] if fails else []

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def tick() -> None:
        if over.is_set():
            raise KeyboardInterrupt

    async def test() -> None:
        async with serving() as (_, direct), ClientSession() as client:
            with Recording(tmp_path / "recording") as recording:
                proxy = Proxy(0, parse_address(f"0={direct}"), recording, Veil(recording.salt))

                def record() -> None:
                    try:
                        run([proxy, *beside], recording, tick=tick, warn=said.append)
                    except BaseException as error:
                        failures.append(error)

                thread = threading.Thread(target=record)
                thread.start()
                while not proxy.port:
                    await asyncio.sleep(0.01)
                url = f"http://127.0.0.1:{proxy.port}{COMPLETIONS}"
                body = {"mode": "much", "mib": 8}
                answer = await client.post(url, json=body)
                await answer.content.readexactly(2**20)
                if beside:
                    beside[0].due.set()
                else:
                    monkeypatch.setattr(os, "fsync", full)
                    recording.write("notes", {"what": "gap"})
                while not said:
                    await asyncio.sleep(0.01)
                assert len(await answer.read()) == 7 * 2**20
                async with client.post(url, json={"mode": "plain"}) as later:
                    assert later.status == 200
                over.set()
                await asyncio.to_thread(thread.join)

    asyncio.run(test())
    (failure,), (sentence,) = failures, said
    assert isinstance(failure, type(fails) if fails else TraceError)
    assert sentence.endswith(" Requests are passed on until Ctrl-C.")
    assert ("no such" if fails else "No space left on device") in sentence


def test_requests_that_run_at_the_end_finish_and_are_written(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving() as (_, direct), ClientSession() as client:
            async with proxied(tmp_path / "recording", direct) as (url, _):
                body = {"mode": "much", "mib": 8}
                answer = await client.post(url + COMPLETIONS, json=body)
                await answer.content.readexactly(2**20)
                rest = asyncio.create_task(answer.read())
            assert len(await rest) == 7 * 2**20

    asyncio.run(test())
    (row,) = read_stream(tmp_path / "recording", "requests")
    assert row["end"] == "done"


def test_prompts_share_ids_as_far_as_they_share_text() -> None:
    size = None  # of the first prompt

    def ids(*texts: str, tokens: int = 800) -> list[int]:
        nonlocal size
        said = [{"role": "user", "content": text} for text in texts]
        row = Prompts(b"x", 64).row(json.dumps({"messages": said}).encode(), {}, tokens, size)
        size = row["place"]
        assert row["ids_of"] == "text"
        return list(row["ids"])

    system, one, other = "s" * 2000, "a" * 900, "b" * 900
    first = ids(system, one)
    assert len(first) == 800 // 64
    shared = [a == b for a, b in zip(first, ids(system, other), strict=True)]
    assert shared == [True] * 8 + [False] * 4
    assert ids(system, one, other, tokens=1050)[:11] == first[:11]


@in_scene
async def test_a_session_is_known_by_a_header_or_a_field(here: Scene) -> None:
    url, heads = here.url + COMPLETIONS, {"X-Session-ID": "me"}
    await (await here.client.post(url, json={}, headers=heads)).read()
    await here.ask(session_id="me")
    await here.ask(prompt_cache_key="you")
    await here.row(3)
    first, second, third = (row["session"] for row in here.rows)
    assert first == second != third


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken, Recording(tmp_path / "recording") as recording:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = parse_address(f"{taken.getsockname()[1]}=http://127.0.0.1:1")
        with pytest.raises(ConfigError, match="take another port"):
            Proxy(0, address, recording, Veil(recording.salt)).run(threading.Event())


def test_only_this_machine_reaches_a_proxy_unless_a_host_is_named() -> None:
    own, named = parse_address("8001=http://h:8000"), parse_address("0.0.0.0:8001=http://h:8000/")
    assert (own.host, own.port, own.upstream.geturl()) == ("127.0.0.1", 8001, "http://h:8000")
    local = own, parse_address("[::1]:8001=http://h"), named
    assert [address.is_public for address in local] == [False, False, True]


ITSELF = "This is the proxy's own address"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("8001=http://localhost:8001", ITSELF),
        ("0.0.0.0:81=http://127.0.0.1:81", ITSELF),
        ("8001=http://h/base?api-version=1", r"^--proxy 8001=http://h/.*: give PORT=URL"),
        ("8001=http://h/base#a", r"^--proxy 8001=http://h/.*: give PORT=URL"),
        ("8001=http://h/a b", r"^--proxy 8001=http://h/.*: give PORT=URL"),
        ("8001=http://me:secret@h", r"^--proxy 8001=http://\*\*\*@h: give PORT=URL"),
    ],
)
def test_an_address_that_no_proxy_can_have_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_address(text)
