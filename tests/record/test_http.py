"""The proxy between raw ends: what it passes on, and what no client or server gets it to do."""

import asyncio
import gc
import gzip
import json
import signal
import threading
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsv4kv.record import Veil
from dsv4kv.record import proxy as proxies
from dsv4kv.record.folder import Record, read_stream
from dsv4kv.record.run import ask
from dsv4kv.record.usage import KEPT_TAIL_BYTES, Ends, Prompts, prompt_text, text_ids
from tests.record.serving import proxied

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ask = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]
PATH = b"/v1/chat/completions"


class Through:
    """A client at a proxy with a raw server behind it.

    Attributes:
        got: What the client got.
        connections: How many the server had.
        rows: What was recorded.
    """

    def __init__(self, folder: Path, answer: Answer, ask: Ask) -> None:
        self.connections = 0
        self._answer, self._ask, self._folder = answer, ask, folder / "recording"
        self.got = asyncio.run(self._run())
        self.rows: list[Record] = list(read_stream(self._folder, "requests"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _run(self) -> bytes:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, proxied(self._folder, upstream) as (url, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            try:
                return await asyncio.wait_for(self._ask(reader, writer), 30)
            finally:
                writer.close()


def answering(*answers: bytes) -> Answer:
    """Each answer is for a connection's next request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(each)
            await writer.drain()

    return answer


def asking(raw: bytes, size: int = -1) -> Ask:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(raw)
        return await (reader.read() if size < 0 else reader.readexactly(size))

    return ask


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
POST = b"POST " + PATH + b" HTTP/1.1\r\nHost: a\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


def content(answer: bytes) -> bytes:
    """Of an answer in chunks."""
    rest, found = answer.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


def test_requests_of_one_client_are_answered_in_order(tmp_path: Path) -> None:
    answers = [OK + b"ab", OK + b"cd"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(answers.pop(0))(reader, writer)

    both = OK + b"ab" + OK + b"cd"
    assert Through(tmp_path, answer, asking(GET + GET, len(both))).got == both


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"foo"])
def test_no_client_takes_another_answer_for_the_one_behind_an_upgrade(
    protocol: bytes, method: bytes, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + head.split()[1][:6])

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        upgrade = b" /first HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nupgrade: " + protocol
        body = b"\r\nContent-Length: 5\r\n\r\nabcde" if method == b"POST" else b"\r\n\r\n"
        writer.write(method + upgrade + body + GET.replace(b"/ ", b"/secon "))
        got = await reader.readuntil(b"/first")
        await asyncio.sleep(0.2)
        writer.write(LAST.replace(b"/ ", b"/third "))
        return got + await reader.read()

    got = Through(tmp_path, answer, ask).got
    assert b"/third" not in got or b"/secon" in got


def test_an_answer_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    served = answering(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    assert content(Through(tmp_path, served, asking(LAST)).got) == b"all of it"


def test_a_client_of_http_1_0_gets_content_without_chunks(tmp_path: Path) -> None:
    got = Through(tmp_path, answering(CHUNKS), asking(b"GET / HTTP/1.0\r\n\r\n")).got
    assert got == b"HTTP/1.0 200 OK\r\n\r\nabcde"


@pytest.mark.parametrize("version", ["0.9", "2.0", ""])
def test_a_request_of_another_version_is_refused(version: str, tmp_path: Path) -> None:
    line = f"GET / HTTP/{version}" if version else "GET /"
    through = Through(tmp_path, answering(OK), asking(line.encode() + b"\r\nHost: a\r\n\r\n"))
    assert through.got.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert through.got.endswith(b"\r\n\r\ndsv4kv record: a request that is not plain HTTP/1.1.\n")
    assert through.connections == 0


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/0.9 200",
        b"HTTP/2.0 200",
        b"HTTP/1.1 000",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nX:",
    ],
)
def test_an_answer_of_another_version_or_kind_is_not_passed_on(
    begin: bytes, tmp_path: Path
) -> None:
    answer = OK.replace(b"HTTP/1.1 200", begin) + b"ab"
    got = Through(tmp_path, answering(answer), asking(LAST)).got
    assert got.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"its answer is no HTTP" in got


@pytest.mark.parametrize(
    "raw", [GET.replace(b"GET", b"CONNECT"), b"GET / HTTP/1.1\r\n:a\r\n\r\n", LAST]
)
def test_the_proxys_own_answers_name_no_software(raw: bytes, tmp_path: Path) -> None:
    got = Through(tmp_path, answering(b"no HTTP\r\n\r\n"), asking(raw)).got
    assert b"dsv4kv record: " in got
    assert b"aiohttp" not in got
    assert b"\r\nServer:" not in got


def test_answers_that_only_promise_are_left_out(tmp_path: Path) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    got = Through(tmp_path, answering(early + CHUNKS), asking(LAST)).got
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert content(got) == b"abcde"


def test_every_part_is_passed_on_at_once(tmp_path: Path) -> None:
    parts = [CHUNKS[: CHUNKS.index(b"2\r\nab")], b"2\r\nab\r\n", b"3\r\ncde\r\n", b"0\r\n\r\n"]
    came = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await came.acquire()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET)
        got = await reader.readuntil(b"\r\n\r\n")
        for part in parts[1:]:
            came.release()
            got += await reader.readexactly(len(part))
        came.release()
        return got

    assert content(Through(tmp_path, answer, ask).got) == b"abcde"


def test_a_server_may_answer_before_it_has_everything(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"a" * 100_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await reader.read()

    assert Through(tmp_path, answer, asking(raw, len(refusal))).got == refusal


@pytest.mark.parametrize("coding", [b"Content-Length: 300000", b"Transfer-Encoding: chunked"])
def test_long_bodies_go_up_as_they_come_and_may_wait_to_be_asked_for(
    coding: bytes, tmp_path: Path
) -> None:
    body = bytes(range(250)) * 1_199 + bytes(245) + b"0end!"
    wire = body if b"Length" in coding else b"493E0\r\n" + body + b"\r\n0\r\n\r\n"
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        came = b"" if b"Length" in coding else b"\r\n\r\n"
        while not came.endswith(wire[-5:]):
            came += await reader.read(2**16)
        seen.append(came if b"Length" in coding else content(came))
        writer.write(OK + b"ok")
        await writer.drain()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        head = b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n" + coding + b"\r\n\r\n"
        writer.write(head)
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        return asked + await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)

    got = Through(tmp_path, answer, ask).got
    # a request in chunks is the last on its connection
    last = b"" if b"Length" in coding else b"Connection: close\r\n"
    assert got == b"HTTP/1.1 100 Continue\r\n\r\n" + OK[:-2] + last + b"\r\nok"
    assert seen[1] == body
    assert coding in seen[0]
    assert b"Expect" not in seen[0]


@pytest.mark.parametrize(
    "fields",
    [
        b"Connection: Content-Length\r\nContent-Length: %d",
        b"Connection: close, content-length\r\nContent-Length: %d",
    ],
)
def test_a_body_whose_length_is_of_the_connection_is_no_second_request(
    fields: bytes, tmp_path: Path
) -> None:
    inner = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    heads, bodies = [], []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            length = heads[-1].lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            bodies.append(await reader.readexactly(int(length or 0)))
            writer.write(OK + (b"ok" if PATH in heads[-1] else b"no"))

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(POST + fields % len(inner) + b"\r\n\r\n" + inner)
        got = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)
        await asyncio.sleep(0.05)
        return got

    assert Through(tmp_path, answer, ask).got.endswith(b"ok")
    assert [head.split(b" ")[1] for head in heads] == [PATH]
    assert bodies == [inner]


EXTRA = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"


@pytest.mark.parametrize("first", [OK + b"ab", CHUNKS])
@pytest.mark.parametrize("late", [False, True])
def test_more_than_an_answer_is_no_answer_to_the_next_request(
    first: bytes, late: bool, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + b"me" if b"/second" in asked else first)
            if late:
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(EXTRA)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET)
        await reader.readuntil(first[-2:])
        await asyncio.sleep(0.1)
        writer.write(LAST.replace(b"/ ", b"/second "))
        return await reader.read()

    got = Through(tmp_path, answer, ask).got
    assert b"evil" not in got
    assert got.endswith(b"\r\n\r\nme")


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"X-A : b",
        b"X-A: b\r\n c: d",
        b"X-A: b\x00",
        b"X-A: " + b"a" * 2**14,
        b"\r\n".join([b"X-A: b"] * 500),
    ],
)
def test_requests_that_could_be_taken_in_two_ways_are_refused(
    fields: bytes, tmp_path: Path
) -> None:
    raw = POST + fields + b"\r\n\r\n0\r\n\r\n"
    went = Through(tmp_path, answering(OK + b"no"), asking(raw))
    assert b" 400 " in went.got.splitlines()[0]
    assert went.connections == 0


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"CONNECT a:1", 405),
        (b"OPTIONS *", 400),
        (b"GET /\xff", 400),
        (b"GET ?a", 400),
        (b"GET a", 400),
        (b"POST v1/chat/completions", 400),
    ],
)
def test_what_is_no_path_of_the_server_does_not_reach_it(
    start: bytes, status: int, tmp_path: Path
) -> None:
    raw = start + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    went = Through(tmp_path, answering(OK + b"no"), asking(raw))
    assert int(went.got.split(b" ")[1]) == status
    assert b"\r\n\r\ndsv4kv record: " in went.got
    assert went.connections == 0


def test_a_refused_request_for_tokens_is_recorded_as_the_clients(tmp_path: Path) -> None:
    raw = POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}"
    went = Through(tmp_path, answering(OK + b"no"), asking(raw))
    assert went.got.startswith(b"HTTP/1.1 417 ")
    assert [(row["status"], row["end"]) for row in went.rows] == [(417, "client left")]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (b"/a%0Ab%2F..%00", b"/a%0Ab%2F..%00"),
        (b"http://elsewhere", b"/"),
        (b"http://elsewhere?a=/b", b"/?a=/b"),
    ],
)
def test_any_path_is_passed_on(given: bytes, path: bytes, tmp_path: Path) -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK + b"ok")

    raw = LAST.replace(b"GET /", b"GET " + given)
    assert Through(tmp_path, answer, asking(raw)).got.endswith(b"ok")
    assert asked[0].startswith(b"GET " + path + b" HTTP/1.1\r\n")


def test_a_server_that_promises_without_end_is_left(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 10)
            await writer.drain()
            await asyncio.sleep(0.001)

    raw = POST + b"Content-Length: 2\r\n\r\n{}"
    went = Through(tmp_path, answer, asking(raw))
    assert went.got.startswith(b"HTTP/1.1 502 ")
    assert [row["end"] for row in went.rows] == ["server not reached"]


@pytest.mark.parametrize("name", [b"Content-Length", b"Transfer-Encoding", b"X Y", b"X"])
def test_a_field_whose_name_is_none_is_not_passed_on(name: bytes, tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + name + b" : 5\r\nA: b\r\n\r\nhello"
    got = Through(tmp_path, answering(answer), asking(LAST)).got
    head, _, _ = got.partition(b"\r\n\r\n")
    assert name + b" :" not in head
    if b" 200 " in head:
        assert b"\r\nA: b" in head
        assert content(got) == b"hello"


@pytest.mark.parametrize(("begun", "more"), [(b"", b"0"), (b"1\r\na\r\n0\r\n", b"X: a\r\n")])
def test_a_server_that_frames_nothing_without_end_is_left(
    begun: bytes, more: bytes, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begun)
        while True:
            writer.write(more * 10_000)
            await writer.drain()

    went = Through(tmp_path, answer, asking(POST + b"Content-Length: 2\r\n\r\n{}"))
    assert not went.got.endswith(b"0\r\n\r\n")
    assert went.rows[0]["end"] in {"server left", "server not reached"}


def test_a_server_that_a_client_names_is_not_asked(tmp_path: Path) -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK + b"ok")

    raw = LAST.replace(b"GET /", b"GET http://elsewhere:81/a?b=%20")
    assert Through(tmp_path, answer, asking(raw)).got.endswith(b"ok")
    assert asked[0].startswith(b"GET /a?b=%20 HTTP/1.1\r\n")
    assert b"elsewhere" not in asked[0]


@pytest.mark.parametrize("before", [b"", b"2\r\nab\r\n"])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_clients_broken_chunk_is_a_400_and_recorded_as_the_clients(
    before: bytes, pause_s: float, tmp_path: Path
) -> None:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head if pause_s else head + before + b"zz\r\n")
        await asyncio.sleep(pause_s)
        if pause_s:
            writer.write(before + b"zz\r\n")
        return await reader.read()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # it waits for the whole body

    went = Through(tmp_path, answer, ask)
    assert b" 400 " in went.got.splitlines()[0]
    (row,) = went.rows
    assert (row["status"], row["end"]) == (400, "client left")


def test_a_servers_broken_chunk_cuts_the_answer_and_is_recorded_as_the_servers(
    tmp_path: Path,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (CHUNKS[:-13], b"zz\r\n"):
            writer.write(part)
            await asyncio.sleep(0.05)
        await reader.read()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(POST + b"Content-Length: 2\r\n\r\n{}")
        return await reader.read()

    went = Through(tmp_path, answer, ask)
    assert went.got.endswith(b"ab\r\n")
    (row,) = went.rows
    assert (row["status"], row["end"]) == (200, "server left")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 2**15,
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 500,
        b"\x00\xff\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_is_no_http_is_no_answer(said: bytes, tmp_path: Path) -> None:
    went = Through(tmp_path, answering(said), asking(POST + b"Content-Length: 2\r\n\r\n{}"))
    assert b" 502 " in went.got.splitlines()[0]
    assert [row["end"] for row in went.rows] == ["server not reached"]


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 \x1b[31m\r\n", b"HTTP/1.1 200 OK\r\nX-A: \x1b[31m\r\n"]
)
def test_control_characters_of_an_answer_are_dropped(head: bytes, tmp_path: Path) -> None:
    said = head + b"Content-Length: 2\r\n\r\nab"
    raw = POST + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    went = Through(tmp_path, answering(said), asking(raw))
    assert went.got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert went.got.endswith(b"\r\n\r\nab")
    assert b"\x1b" not in went.got
    assert [(row["status"], row["end"]) for row in went.rows] == [(200, "done")]


def test_a_count_of_tokens_that_nobody_has_costs_nothing(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 2**31 - 1, "completion_tokens": 3}
    said = json.dumps({"id": "a", "usage": usage}).encode()
    body = json.dumps({"messages": [{"role": "user", "content": "a" * 900}]}).encode()
    raw = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    (row,) = Through(tmp_path, answering(answer), asking(raw)).rows  # it took minutes
    assert (row["end"], row["output_tokens"], "input_tokens" in row) == ("done", 3, False)
    assert len(text_ids(b"a" * 640, 2**24, 64.0, Veil(b"x"))) == (640 + 2**16) // 64


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": 3}, b""),
        ({"prompt": [1, "a", True, None]}, b"a"),
        ({"input": 0.5, "messages": 7}, b""),
        ({"prompt": {"a": "é"}}, '{"a": "é"}'.encode()),
    ],
)
def test_a_number_is_no_text_of_a_prompt(body: dict[str, Any], text: bytes) -> None:
    assert prompt_text(body) == text


ANTHROPIC = {
    "input_tokens": 600,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 100,
}


@pytest.mark.parametrize("text", [b'{"usage":', b'"usage":{"b":[' + b"1," * 18 + b"1],"])
def test_of_an_answer_of_beginnings_few_are_read(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            read.append(len(s))
            return super().raw_decode(s, idx)

    monkeypatch.setattr(json, "JSONDecoder", Counting)
    ends = Ends()
    list(ends.add(text * (2**17 // len(text))))
    assert set(ends.row(Veil(b"x"))) <= {"id"}
    assert 0 < sum(read) <= 4 * KEPT_TAIL_BYTES


@pytest.mark.parametrize(
    "events",
    [
        [{"usage": ANTHROPIC | {"output_tokens": 7}}],
        [
            {"type": "message_start", "message": {"usage": ANTHROPIC | {"output_tokens": 0}}},
            {"type": "content_block_delta", "delta": {"text": "a" * KEPT_TAIL_BYTES}},
            {"type": "message_delta", "usage": {"output_tokens": 7}},
        ],
        [{"usage": ANTHROPIC | {"output_tokens": 7}, "schema": {"usage": {"type": "string"}}}],
        [
            {"text": "a" * KEPT_TAIL_BYTES},
            {"usage": ANTHROPIC | {"output_tokens": 7}, "logprobs": "a" * 3 * KEPT_TAIL_BYTES},
        ],
    ],
)
def test_usage_is_read_wherever_its_parts_are(events: list[Record]) -> None:
    ends = Ends()
    for each in events:
        list(ends.add(f"data: {json.dumps(each)}\n\n".encode()))
    counts = {"input_tokens": 1000, "output_tokens": 7, "cached_tokens": 300}
    assert ends.row(Veil(b"x")) == counts


def test_the_id_of_an_answer_is_found_behind_its_text() -> None:
    ends, told = Ends(), {"id": "a7", "prompt_tokens": 1000, "completion_tokens": 1500}
    answer = {"text": "a" * 2**13, "output_ids": [7] * 1500, "meta_info": told}  # SGLang's
    list(ends.add(json.dumps(answer).encode()))
    veil = Veil(b"x")
    assert ends.row(veil)["id"] == veil.name("a7")


def test_an_answer_to_a_batch_has_no_count_of_all() -> None:
    ends = Ends()
    list(ends.add(json.dumps([{"meta_info": {"prompt_tokens": n}} for n in (300, 400)]).encode()))
    assert ends.row(Veil(b"x")) == {}


@pytest.mark.parametrize("name", ["prompt", "text"])
def test_a_batch_has_no_ids_and_settles_no_size_of_pieces(name: str) -> None:
    body = json.dumps({name: ["a" * 900, "b" * 900]}).encode()
    assert Prompts(b"x", 64).row(body, {}, 600, None) == {}


def test_of_a_packed_answer_no_more_is_unpacked_than_an_answer_has() -> None:
    import zlib

    bomb = zlib.compress(bytes(2**27))
    ends = Ends("deflate")
    for _ in range(20):
        list(ends.add(bomb))
    assert -2 * KEPT_TAIL_BYTES < ends._left <= 0


def test_a_packed_answer_of_several_members_is_read_to_its_end() -> None:
    said = b'{"id":"a"}', json.dumps({"usage": {"prompt_tokens": 7}}).encode()
    packed, ends = b"".join(map(gzip.compress, said)), Ends("gzip")
    for place in range(0, len(packed), 5):
        list(ends.add(packed[place : place + 5]))
    assert ends.row(Veil(b"x"))["input_tokens"] == 7
    empty = gzip.compress(b"") * 2**16
    assert sum(1 for _ in Ends("gzip").add(empty)) <= 2**14


def test_tokens_of_more_than_63_bits_lose_no_row(tmp_path: Path) -> None:
    said = json.dumps({"id": "a", "usage": {"prompt_tokens": 64}}).encode()
    body = json.dumps({"prompt": [2**63 + 5, *range(63)]}).encode()
    raw = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
    (row,) = Through(tmp_path, answering(answer), asking(raw)).rows
    assert (row["input_tokens"], len(row["ids"])) == (64, 1)


@pytest.mark.parametrize(("status", "tokens"), [(b"200 OK", 128), (b"503 Full", None)])
def test_a_prompt_of_tokens_has_its_length_also_where_its_answer_is_cut(
    status: bytes, tokens: int | None, tmp_path: Path
) -> None:
    body = json.dumps({"prompt": [*range(128)]}).encode()
    raw = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
    answer = b"HTTP/1.1 %b\r\nContent-Length: 99\r\n\r\n{" % status
    (row,) = Through(tmp_path, answering(answer), asking(raw)).rows
    assert (row["end"], row.get("input_tokens"), "ids" in row) == (
        "server left",
        tokens,
        tokens is not None,
    )


def test_idle_connections_make_room_for_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_MOST_DESCRIPTORS", 8)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKS[:-10])
        await asyncio.sleep(0.3)  # while the others come
        writer.write(CHUNKS[-10:])

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        port = writer.get_extra_info("peername")[1]
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        other, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(LAST)
        whole = await other.read()
        rest = await reader.readuntil(b"0\r\n\r\n")
        closed = sum(line.at_eof() for line, _ in lines)
        for _, line in lines:
            line.close()
        writing.close()
        return b"%d %b %b" % (closed, content(whole), content(b"\r\n\r\n" + rest))

    closed, *both = Through(tmp_path, answer, ask).got.split(b" ")
    assert both == [b"abcde", b"abcde"]
    assert int(closed) >= 32


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-A: ", GET])
def test_a_connection_without_a_whole_head_is_closed_after_a_while(
    begun: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_IDLE_S", 0.2)
    got = Through(tmp_path, answering(OK + b"ab"), asking(begun)).got
    assert got == (OK + b"ab" if begun == GET else b"")


def test_a_body_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_STALL_S", 0.2)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    went = Through(tmp_path, answer, asking(POST + b"Content-Length: 99999\r\n\r\n{"))
    assert b" 408 " in went.got.splitlines()[0]
    assert [(row["status"], row["end"]) for row in went.rows] == [(408, "client left")]


def test_a_client_that_takes_nothing_is_left_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_STALL_S", 0.2)
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(bytes(2**20))
                await writer.drain()
        finally:
            left.set()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(POST + b"Content-Length: 2\r\n\r\n{}")
        await left.wait()
        return b""

    (row,) = Through(tmp_path, answer, ask).rows
    assert row["end"] == "client left"


def test_what_a_row_cannot_be_made_of_stops_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RecursionError

    monkeypatch.setattr("dsv4kv.processes.Confined.ask", fail)
    body = b"x" * 2**19  # long enough to be read beside the streams
    raw = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(OK + b"ab")

    went = Through(tmp_path, answer, asking(raw))
    assert went.got.endswith(b"\r\n\r\nab")
    assert [row["end"] for row in went.rows] == ["done"]


def test_a_server_that_leaves_at_once_is_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        got, place = b"", writer.get_extra_info("peername")
        for wait_s in (0, 0.001, 0.002, 0.005) * 5:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
            await asyncio.sleep(wait_s)
            writer.write(b"0\r\n\r\n")
            got += await reader.read()
            writer.close()
        return got

    assert Through(tmp_path, answer, ask).got.count(b" 502 ") == 20
    gc.collect()
    assert not caplog.records


def test_ctrl_c_while_a_loop_is_made_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    make = asyncio.selector_events.BaseSelectorEventLoop.__init__

    def interrupted(*given: Any) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        make(*given)

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "__init__", interrupted)
    with warnings.catch_warnings(record=True) as warned:
        with pytest.raises(KeyboardInterrupt):
            ask("http://127.0.0.1:1", 1.0)
        gc.collect()
    assert not warned
