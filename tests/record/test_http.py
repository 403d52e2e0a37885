"""The proxy between raw ends: what it passes on, and what no client or server gets it to do."""

import asyncio
import gc
import gzip
import json
import signal
import threading
import warnings
import zlib
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from dsv4kv.record import Veil
from dsv4kv.record import proxy as proxies
from dsv4kv.record.folder import Record, read_stream
from dsv4kv.record.http import ask
from dsv4kv.record.usage import KEPT_TAIL_BYTES, Ends, Prompts
from tests.record.serving import proxied

Answer = Callable[[Reader, Writer], Awaitable[None]]
Ask = Callable[[Reader, Writer], Awaitable[bytes]]
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

    @property
    def ends(self) -> list[tuple[int, str]]:
        """Status and end of every row."""
        return [(row["status"], row["end"]) for row in self.rows]

    async def _serve(self, reader: Reader, writer: Writer) -> None:
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
            place = "127.0.0.1", urlsplit(url).port
            reader, writer = await asyncio.open_connection(*place)
            try:
                got = await asyncio.wait_for(self._ask(reader, writer), 30)
            finally:
                writer.close()
            reader, writer = await asyncio.open_connection(*place)
            writer.write(LAST.replace(b"GET /", b"CONNECT a:1"))  # whatever it was, others go on
            assert b" 405 " in await asyncio.wait_for(reader.read(), 30)
            writer.close()
            return got


def answering(said: bytes | Callable[[bytes], bytes], heads: list[bytes] | None = None) -> Answer:
    """A server with an answer, or one made of a request's head; ``heads``: those it read."""

    async def answer(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        writer.write(said if isinstance(said, bytes) else said(head))
        await writer.drain()

    return answer


def flooding(begin: bytes, more: bytes, pause_s: float = 0.0) -> Answer:
    """A server that sends without end, once it was asked."""

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        while True:
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def silent(reader: Reader, writer: Writer) -> None:
    """A server that reads, and does not answer."""
    await reader.read()


def asking(raw: bytes, size: int = -1) -> Ask:
    async def ask(reader: Reader, writer: Writer) -> bytes:
        writer.write(raw)
        return await (reader.read() if size < 0 else reader.readexactly(size))

    return ask


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
POST = b"POST " + PATH + b" HTTP/1.1\r\nHost: a\r\n"
SMALL = POST + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = CHUNKED + b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


def posting(body: Any) -> Ask:
    """A request for tokens that is the last on its connection."""
    sent = json.dumps(body).encode()
    fields = b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(sent), sent)
    return asking(POST + fields)


def saying(document: Any) -> bytes:
    """A server's answer of JSON."""
    said = json.dumps(document).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(said), said)


def content(answer: bytes) -> bytes:
    """Of an answer in chunks."""
    rest, found = answer.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


class Case(NamedTuple):
    """A request and a server's answer, and what becomes of them."""

    raw: bytes
    said: bytes
    begin: bytes  # of what the client gets
    end: bytes = b""
    has: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    ends: list[tuple[int, str]] | None = None  # rows, if any are looked at
    connections: int | None = None
    asked: bytes = b""  # how the server is


OWN = b"\r\n\r\ndsv4kv record: "
ODD = b"dsv4kv record: a request that is not plain HTTP/1.1.\n"
ESCAPE = b"\x1b[31m"
EXPECTING = POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}"
PASSED = {
    "an answer that ends with its connection is whole": Case(
        LAST, HEAD + b"\r\nall of it", HEAD, has=(b"9\r\nall of it",)
    ),
    "HEAD is answered without content": Case(
        LAST.replace(b"GET", b"HEAD"), OK, HEAD, b"\r\n\r\n", asked=b"HEAD / "
    ),
    "a client of HTTP/1.0 gets content without chunks": Case(
        b"GET / HTTP/1.0\r\n\r\n", CHUNKS, b"HTTP/1.0 200 OK\r\n\r\nabcde"
    ),
    "answers that only promise are left out": Case(
        LAST, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKS, HEAD, has=(b"ab", b"cde")
    ),
    "control characters of a reason are dropped": Case(
        SMALL, OK.replace(b"OK", ESCAPE) + b"ab", HEAD, b"\r\n\r\nab",
        lacks=(ESCAPE,), ends=[(200, "done")],
    ),
    "fields with control characters are dropped": Case(
        SMALL, HEAD + b"X-A: " + ESCAPE + b"\r\nContent-Length: 2\r\n\r\nab", HEAD,
        b"\r\n\r\nab", lacks=(ESCAPE,), ends=[(200, "done")],
    ),
    "a refused request for tokens is recorded as the client's": Case(
        EXPECTING, OK + b"no", b"HTTP/1.1 417 ", ends=[(417, "client left")]
    ),
    "bytes that are none of a text are passed on": Case(
        LAST.replace(b"a\r", b"a\r\nX-Odd: \xff\xfe\r\nCookie: \xe9\r", 1), OK + b"ab", HEAD, b"ab"
    ),
    "bytes that are no request are refused": Case(
        b"\x00\xff\r\n\r\n", OK, b"HTTP/1.", has=(b" 400 ",), connections=0
    ),
    "CONNECT does not reach the server": Case(
        LAST.replace(b"GET /", b"CONNECT a:1"), OK, b"HTTP/1.1 405 ", has=(OWN,),
        lacks=(b"aiohttp", b"\r\nServer:"), connections=0,
    ),
    "the proxy's own answers name no software": Case(
        LAST, b"no HTTP\r\n\r\n", b"HTTP/1.1 502 ", has=(OWN,), lacks=(b"aiohttp", b"\r\nServer:")
    ),
    **{
        f"a field {name!r} of an answer is not passed on": Case(
            LAST, HEAD + name + b" : 5\r\nA: b\r\n\r\nhello", b"HTTP/1.1 ", lacks=(name + b" :",)
        )
        for name in (b"Content-Length", b"Transfer-Encoding", b"X Y")
    },
    **{
        f"{given!r} is a path of the server": Case(
            LAST.replace(b"/ ", given + b" "), OK + b"ok", HEAD, b"ok",
            asked=b"GET " + path + b" HTTP/1.1\r\n",
        )
        for given, path in {
            b"/a%0Ab%2F..%00": b"/a%0Ab%2F..%00",
            b"http://elsewhere?a=/b": b"/?a=/b",
            b"http://elsewhere:81/a?b=%20": b"/a?b=%20",
        }.items()
    },
    "nor do those to what is malformed": Case(
        b"GET / HTTP/1.1\r\n:a\r\n\r\n", OK, b"HTTP/1.", ODD, lacks=(b"aiohttp", b"\r\nServer:")
    ),
    **{
        f"{line!r} is of another version": Case(
            line + b"\r\nHost: a\r\n\r\n", OK, b"HTTP/1.0 400 Bad Request\r\n", ODD, connections=0
        )
        for line in (b"GET / HTTP/0.9", b"GET / HTTP/2.0", b"GET /")
    },
    **{
        f"{start!r} is no path of the server": Case(
            start + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", OK, b"HTTP/1.",
            has=(b" 400 ", OWN), connections=0,
        )
        for start in (b"OPTIONS *", b"GET /\xff", b"GET ?a", b"GET a", b"POST v1/chat/completions")
    },
    **{
        f"{fields[:40]!r} could be taken in two ways": Case(
            POST + fields + b"\r\n\r\n0\r\n\r\n", OK, b"HTTP/1.", has=(b" 400 ",), connections=0
        )
        for fields in (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked",
            b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: +5",
            b"Content-Length: -1", b"Content-Length: 5, 5", b"Transfer-Encoding: xchunked",
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            b"X-A : b", b"X-A b", b"X-A: b\r\n c: d", b"X-A: b\x00",
            b"X-A: " + b"a" * 2**14, b"\r\n".join([b"X-A: b"] * 500),
        )
    },
    **{
        f"{said[:60]!r} is no answer": Case(
            SMALL, said, b"HTTP/1.1 502 Bad Gateway\r\n", has=(b"its answer is no HTTP",),
            ends=[(0, "server not reached")],
        )
        for said in (
            OK.replace(b"1.1 200", b"2.0 200") + b"ab",
            OK.replace(b"200", b"000") + b"ab",
            HEAD + b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 2\r\n\r\nab",
            HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
            HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nevil",
            HEAD + b"X-A: " + b"a" * 2**15, HEAD + b"X-A: b\r\n" * 500, b"\x00\xff\r\n\r\n", b"",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED)
def test_one_request_becomes_one_answer(name: str, tmp_path: Path) -> None:
    case, heads = PASSED[name], list[bytes]()
    went = Through(tmp_path, answering(case.said, heads), asking(case.raw))
    assert went.got.startswith(case.begin)
    assert went.got.endswith(case.end)
    assert [each for each in case.has if each not in went.got] == []
    assert [each for each in case.lacks if each in went.got] == []
    assert case.ends in (None, went.ends)
    assert case.connections in (None, went.connections)
    assert all(head.startswith(case.asked) and b"elsewhere" not in head for head in heads)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"foo"])
def test_an_upgrade_swaps_no_answers(protocol: bytes, method: bytes, tmp_path: Path) -> None:
    async def ask(reader: Reader, writer: Writer) -> bytes:
        upgrade = b" /first HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nupgrade: " + protocol
        body = b"\r\nContent-Length: 5\r\n\r\nabcde" if method == b"POST" else b"\r\n\r\n"
        writer.write(method + upgrade + body + GET.replace(b"/ ", b"/secon "))
        got = await reader.readuntil(b"/first")
        await asyncio.sleep(0.2)
        writer.write(LAST.replace(b"/ ", b"/third "))
        return got + await reader.read()

    six = OK.replace(b"2\r", b"6\r")
    got = Through(tmp_path, answering(lambda head: six + head.split()[1][:6]), ask).got
    assert b"/third" not in got or b"/secon" in got


def test_a_server_may_answer_before_it_has_everything(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"a" * 100_000

    async def answer(reader: Reader, writer: Writer) -> None:
        await answering(refusal)(reader, writer)
        await reader.read()

    assert Through(tmp_path, answer, asking(raw, len(refusal))).got == refusal


@pytest.mark.parametrize("coding", [b"Content-Length: 300000", b"Transfer-Encoding: chunked"])
def test_long_bodies_go_up_as_they_come(coding: bytes, tmp_path: Path) -> None:
    body, seen = bytes(range(250)) * 1_199 + bytes(245) + b"0end!", list[bytes]()
    chunked = b"Length" not in coding
    wire = b"493E0\r\n" + body + b"\r\n0\r\n\r\n" if chunked else body

    async def answer(reader: Reader, writer: Writer) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        came = b"\r\n\r\n" if chunked else b""
        while not came.endswith(wire[-5:]):
            came += await reader.read(2**16)
        seen.append(content(came) if chunked else came)
        writer.write(OK + b"ok")
        await writer.drain()

    async def ask(reader: Reader, writer: Writer) -> bytes:
        head = b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n" + coding + b"\r\n\r\n"
        writer.write(head)
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        return asked + await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)

    got = Through(tmp_path, answer, ask).got
    # a request in chunks is the last on its connection
    last = b"Connection: close\r\n" if chunked else b""
    assert got == b"HTTP/1.1 100 Continue\r\n\r\n" + OK[:-2] + last + b"\r\nok"
    assert seen[1] == body
    assert coding in seen[0]
    assert b"Expect" not in seen[0]


@pytest.mark.parametrize("named", [b"Content-Length", b"close, content-length"])
def test_a_body_is_no_second_request(named: bytes, tmp_path: Path) -> None:
    inner = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    fields = b"Connection: " + named + b"\r\nContent-Length: %d\r\n\r\n" % len(inner)
    heads, bodies = list[bytes](), list[bytes]()

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            length = heads[-1].lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            bodies.append(await reader.readexactly(int(length or 0)))
            writer.write(OK + (b"ok" if PATH in heads[-1] else b"no"))

    async def ask(reader: Reader, writer: Writer) -> bytes:
        writer.write(POST + fields + inner)
        got = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)
        await asyncio.sleep(0.05)
        return got

    assert Through(tmp_path, answer, ask).got.endswith(b"ok")
    assert [head.split(b" ")[1] for head in heads] == [PATH]
    assert bodies == [inner]


@pytest.mark.parametrize("first", [OK + b"ab", CHUNKS])
@pytest.mark.parametrize("late", [False, True])
def test_more_than_an_answer_is_dropped(first: bytes, late: bool, tmp_path: Path) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + b"me" if b"/second" in asked else first)
            if late:
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(OK.replace(b"2\r", b"4\r") + b"evil")

    async def ask(reader: Reader, writer: Writer) -> bytes:
        writer.write(GET)
        await reader.readuntil(first[-2:])
        await asyncio.sleep(0.1)
        writer.write(LAST.replace(b"/ ", b"/second "))
        return await reader.read()

    got = Through(tmp_path, answer, ask).got
    assert b"evil" not in got
    assert got.endswith(b"\r\n\r\nme")


FLOODS = [
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10, 0.001), (CHUNKED, b"0" * 10_000, 0.0),
    (CHUNKED + b"1\r\na\r\n0\r\n", b"X: a\r\n" * 10_000, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("begin", "more", "pause_s"), FLOODS)
def test_endless_servers_are_left(
    begin: bytes, more: bytes, pause_s: float, tmp_path: Path
) -> None:
    went = Through(tmp_path, flooding(begin, more, pause_s), asking(SMALL))
    assert not went.got.endswith(b"0\r\n\r\n")
    ((_, end),) = went.ends
    assert end in ({"server left", "server not reached"} if begin else {"server not reached"})
    assert begin or went.got.startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("before", [b"", b"2\r\nab\r\n"])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_clients_broken_chunk_is_its_own(before: bytes, pause_s: float, tmp_path: Path) -> None:
    async def ask(reader: Reader, writer: Writer) -> bytes:
        head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        for part in [head, before + b"zz\r\n"] if pause_s else [head + before + b"zz\r\n"]:
            writer.write(part)
            await asyncio.sleep(pause_s)
        return await reader.read()

    went = Through(tmp_path, silent, ask)
    assert b" 400 " in went.got.splitlines()[0]
    assert went.ends == [(400, "client left")]


def test_a_servers_broken_chunk_cuts_the_answer_and_is_its_own(tmp_path: Path) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        for part in (CHUNKS[:-13], b"zz\r\n"):
            writer.write(part)
            await asyncio.sleep(0.05)
        await reader.read()

    went = Through(tmp_path, answer, asking(SMALL))
    assert went.got.endswith(b"ab\r\n")
    assert went.ends == [(200, "server left")]


LONG = {"messages": [{"role": "user", "content": "a" * 900}]}
TOLD: dict[str, tuple[Any, bytes, Record]] = {
    "a count of tokens that nobody has": (
        LONG, saying({"id": "a", "usage": {"prompt_tokens": 2**31 - 1, "completion_tokens": 3}}),
        {"end": "done", "output_tokens": 3, "input_tokens": None},  # it took minutes
    ),
    "a token of more than 63 bits": (
        {"prompt": [2**63 + 5, *range(63)]}, saying({"id": "a", "usage": {"prompt_tokens": 64}}),
        {"end": "done", "input_tokens": 64, "ids": 1},
    ),
    "a prompt of tokens whose answer is cut": (
        {"prompt": [*range(128)]}, HEAD + b"Content-Length: 99\r\n\r\n{",
        {"end": "server left", "input_tokens": 128, "ids": 2},
    ),
    "a prompt that no server took": (
        {"prompt": [*range(128)]}, b"HTTP/1.1 503 Full\r\nContent-Length: 99\r\n\r\n{",
        {"end": "server left", "input_tokens": None, "ids": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_row_has_what_a_request_and_its_answer_tell(name: str, tmp_path: Path) -> None:
    body, said, told = TOLD[name]
    (row,) = Through(tmp_path, answering(said), posting(body)).rows
    row |= {"ids": len(row["ids"])} if "ids" in row else {}
    assert {field: row.get(field) for field in told} == told


def picture(file: str, said: str = "") -> Record:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{file}"}}]
    text = {"type": "text", "text": said}
    return {"messages": [{"role": "user", "content": [*parts, text]}]}


SAME = {"prompt": [1, 2] * 64}
BODIES: dict[str, tuple[Record, int, Record]] = {
    "tokens by another name": ({"token_ids": [1, 2] * 64}, 0, SAME),
    "tokens as a batch of one": ({"prompt": [[1, 2] * 64]}, 0, SAME),
    "a batch of prompts": ({"prompt": ["a" * 900, "b" * 900]}, 600, {}),
    "a batch of texts": ({"text": ["a" * 900, "b" * 900]}, 600, {}),
    "a file, which is one word": (picture("A" * 10**6), 1_000, {}),
    "more text than so many tokens have": (picture("", "a" * 10**5), 1_000, {}),
    "a number": ({"input": 0.5, "messages": 7}, 600, {}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_has_the_ids_of_one_that_says_the_same(name: str) -> None:
    body, tokens, same = BODIES[name]
    row, other = (
        Prompts(b"x", 64).row(json.dumps(each).encode(), {}, tokens, None) for each in (body, same)
    )
    assert row == other
    assert row.get("ids") == (Veil(b"x").prompt([1, 2] * 64) if same is SAME else None)
    assert "ids_of" not in row  # which are those of logs


@pytest.mark.parametrize("text", [b'{"usage":', b'"usage":{"b":[' + b"1," * 18 + b"1],"])
def test_of_many_beginnings_few_are_read(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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


def events(*documents: Record) -> list[bytes]:
    return [f"data: {json.dumps(each)}\n\n".encode() for each in documents]


CACHED = {"cache_read_input_tokens": 300, "cache_creation_input_tokens": 100}
ANTHROPIC = {"input_tokens": 600, "output_tokens": 7} | CACHED
COUNTS = {"input_tokens": 1000, "output_tokens": 7, "cached_tokens": 300}
BEGUN = {"message": {"usage": ANTHROPIC | {"output_tokens": 0}}, "type": "message_start"}
SGLANG = {"meta_info": {"id": "a7", "prompt_tokens": 1000}, "output_ids": [7] * 1500}
USAGE: dict[str, tuple[list[bytes], Record]] = {
    "at the end": (events({"usage": ANTHROPIC}), COUNTS),
    "at the beginning and at the end": (
        events(BEGUN, {"delta": {"text": "a" * KEPT_TAIL_BYTES}}, {"usage": {"output_tokens": 7}}),
        COUNTS,
    ),
    "before something else of its name": (
        events({"usage": ANTHROPIC, "schema": {"usage": {"type": "string"}}}), COUNTS,
    ),
    "before log-probabilities": (
        events({"text": "a" * KEPT_TAIL_BYTES},
               {"usage": ANTHROPIC, "logprobs": "a" * 3 * KEPT_TAIL_BYTES}),
        COUNTS,
    ),
    "with the id, behind a long text": (
        [json.dumps({"text": "a" * 2**13} | SGLANG).encode()],
        {"input_tokens": 1000, "id": Veil(b"x").name("a7")},
    ),
    "of each prompt of a batch": (
        [json.dumps([{"meta_info": {"prompt_tokens": n}} for n in (300, 400)]).encode()], {},
    ),
    "of another shape": (
        [b'{"usage":{"prompt_tokens":300,"prompt_tokens_details":[1],"cached_tokens":64}}'],
        {"input_tokens": 300, "cached_tokens": 64},
    ),
    "with another engine's fields": (
        [(b'{"usage":{"prompt_tokens":null,"input_tokens":90,"completion_tokens":7,'
         b'"cache_read_input_tokens":50,"cached_tokens_details":{"device":"cuda:0"},'
         b'"input_tokens_details":{"cached_tokens":50}}}')],
        {"input_tokens": 90, "output_tokens": 7, "cached_tokens": 50},
    ),
    "with nulls": (
        [(b'{"usage":{"prompt_tokens":100,"cache_read_input_tokens":null,"cached_tokens":50,'
         b'"prompt_tokens_details":{"cached_tokens":null}}}')],
        {"input_tokens": 100, "cached_tokens": 50},
    ),
    "without end": ([b'{"usage": {"prompt_tokens_details": {"device": 1e999}}}'], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", USAGE)
def test_usage_is_read_wherever_its_parts_are(name: str) -> None:
    parts, row = USAGE[name]
    ends = Ends()
    for part in parts:
        list(ends.add(part))
    assert ends.row(Veil(b"x")) == row


def test_of_a_packed_answer_no_more_is_unpacked_than_an_answer_has() -> None:
    bomb, ends = zlib.compress(bytes(2**27)), Ends("deflate")
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


def test_idle_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "_MOST_DESCRIPTORS", 8)

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKS[:-10])
        await asyncio.sleep(0.3)  # while the others come
        writer.write(CHUNKS[-10:])

    async def ask(reader: Reader, writer: Writer) -> bytes:
        port = writer.get_extra_info("peername")[1]
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        other, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(LAST)
        whole = await other.read()
        rest = await reader.readuntil(b"0\r\n\r\n")
        closed = sum(line.at_eof() for line, _ in lines)
        for _, line in [*lines, (other, writing)]:
            line.close()
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


@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["silent", "a byte now and then"])
def test_a_body_that_does_not_come_is_not_waited_for(
    pause_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_STALL_S", 0.2)

    async def trickle(reader: Reader, writer: Writer) -> bytes:
        writer.write(POST + b"Content-Length: 99999\r\n\r\n{")
        while not reader.at_eof() and pause_s:
            await asyncio.sleep(pause_s)
            writer.write(b"1")
            if reader._buffer:  # type: ignore[attr-defined]
                break
        return await reader.read()

    went = Through(tmp_path, silent, trickle)
    assert b" 408 " in went.got.splitlines()[0]
    assert went.ends == [(408, "client left")]


def test_a_client_that_takes_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "_STALL_S", 0.2)
    left = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        try:
            await flooding(b"HTTP/1.1 200 OK\r\n\r\n", bytes(2**20))(reader, writer)
        finally:
            left.set()

    async def ask(reader: Reader, writer: Writer) -> bytes:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(SMALL)
        await left.wait()
        return b""

    assert Through(tmp_path, answer, ask).ends == [(200, "client left")]


def test_a_row_that_fails_stops_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RecursionError

    monkeypatch.setattr("dsv4kv.processes.Confined.ask", fail)
    body = "x" * 2**19  # long enough to be read beside the streams

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body) + 2)
        writer.write(OK + b"ab")

    went = Through(tmp_path, answer, posting(body))
    assert went.got.endswith(b"\r\n\r\nab")
    assert went.ends == [(200, "done")]


def test_a_leaving_server_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        writer.close()

    async def ask(reader: Reader, writer: Writer) -> bytes:
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
