"""Messages of HTTP/1.1 end where RFC 9112 says, and the proxy passes on what lies between."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.recording.folder import Recording
from dsv4kv.recording.http import (
    CHUNKED,
    TO_END,
    Body,
    Head,
    Malformed,
    answer_length,
    read_answer,
    read_request,
    request_length,
)
from dsv4kv.recording.proxy import Proxy, parse_address
from dsv4kv.recording.veil import Veil


def read_all(pieces: list[bytes], length: int) -> tuple[bytes, bytes, bool]:
    """A body that comes in pieces: as it came, its content, and whether more came behind it."""

    async def read() -> tuple[bytes, bytes, bool]:
        reader = asyncio.StreamReader()
        body, parts = Body(reader, length), []

        async def feed() -> None:
            for piece in pieces:
                reader.feed_data(piece)
                await asyncio.sleep(0)
            reader.feed_eof()

        feeding = asyncio.create_task(feed())
        try:
            while (part := await body.read()) is not None:
                parts.append(part)
        finally:
            await feeding
        wire, content = (b"".join(column) for column in zip(*parts, strict=True))
        return wire, content, body.is_over

    return asyncio.run(read())


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b";a=b", b" "]),
    st.sampled_from([b"", b"X-Sum: 1\r\n"]),
    st.booleans(),
    st.data(),
)
def test_chunks_are_content_wherever_they_are_cut(
    chunks: list[bytes], extension: bytes, trailer: bytes, over: bool, data: st.DataObject
) -> None:
    wire = b"".join(b"%X%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks)
    wire += b"0\r\n" + trailer + b"\r\n"
    sent = wire + (b"GET / HTTP/1.1\r\n\r\n" if over else b"")
    cuts = sorted({0, len(sent), *data.draw(st.lists(st.integers(1, len(sent)), max_size=9))})
    pieces = [sent[a:b] for a, b in pairwise(cuts)]
    passed, content, is_over = read_all(pieces, CHUNKED)
    assert (passed, content) == (wire, b"".join(chunks))
    assert not is_over or over


@pytest.mark.parametrize(
    "wire",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nabcX\n0\r\n\r\n",
        b"F" * 20 + b"\r\n",
        b"1;" + b"a" * 2**17,
        b"0\r\n" + b"X: " + b"a" * 2**16 + b"\r\n\r\n",
    ],
)
def test_chunks_that_are_none_are_refused(wire: bytes) -> None:
    with pytest.raises(Malformed):
        read_all([wire], CHUNKED)


@pytest.mark.parametrize("length", [CHUNKED, 10])
def test_a_body_that_ends_early_is_incomplete(length: int) -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        read_all([b"4\r\nabc"], length)
    assert read_all([b"abc", b"def"], TO_END) == (b"abcdef", b"abcdef", False)
    assert read_all([b"abc", b"def"], 4)[1] == b"abcd"


def head(*fields: tuple[bytes, bytes], start: bytes = b"POST / HTTP/1.1") -> Head:
    first, second, third = start.split(b" ", 2)
    return Head((first, second, third), list(fields))


@pytest.mark.parametrize(
    "fields",
    [
        [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")],
        [(b"Content-Length", b"5"), (b"content-length", b"6")],
        [(b"Content-Length", b"+5")],
        [(b"Content-Length", b"5, 5")],
        [(b"Content-Length", b"")],
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"xchunked")],
    ],
)
def test_a_request_with_two_ends_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Malformed):
        request_length(head(*fields))


def test_answers_end_as_method_and_status_say() -> None:
    fields = (b"Content-Length", b"7"), (b"Transfer-Encoding", b"chunked")
    for start, method, length in (
        (b"HTTP/1.1 200 OK", b"HEAD", 0),
        (b"HTTP/1.1 204 No", b"GET", 0),
        (b"HTTP/1.1 304 No", b"GET", 0),
        (b"HTTP/1.1 200 OK", b"GET", CHUNKED),
    ):
        assert answer_length(head(*fields, start=start), method) == length
    assert answer_length(head(fields[0], start=b"HTTP/1.1 200 OK"), b"GET") == 7
    assert answer_length(head(start=b"HTTP/1.1 200 OK"), b"GET") == TO_END


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n",
        b"GET / HTTP/1.1\r\n: b\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_heads_that_could_be_taken_in_two_ways_are_refused(raw: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        await read_request(reader)

    with pytest.raises(Malformed):
        asyncio.run(read())


def test_an_answer_needs_no_reason() -> None:
    async def read(raw: bytes) -> Head:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        return await read_answer(reader)

    assert asyncio.run(read(b"HTTP/1.1 200\r\n\r\n")).start == (b"HTTP/1.1", b"200", b"")
    assert asyncio.run(read(b"HTTP/1.0 404 Not Here\r\n\r\n")).start[2] == b"Not Here"


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def through(
    tmp_path: Path,
    answer: Answer,
    ask: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]],
) -> tuple[bytes, int]:
    """What a client gets of a server through the proxy, and how many connections that took."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await answer(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def test() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with Recording(tmp_path / "recording") as recording:
            stop = threading.Event()
            proxy = Proxy(
                0, parse_address(f"0=http://127.0.0.1:{port}"), recording, Veil(b"x" * 32)
            )
            thread = threading.Thread(target=proxy.run, args=(stop,))
            thread.start()
            while not proxy.port:
                await asyncio.sleep(0.005)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            try:
                return await asyncio.wait_for(ask(reader, writer), 30)
            finally:
                writer.close()
                stop.set()
                await asyncio.to_thread(thread.join)
                server.close()

    return asyncio.run(test()), connections


def answering(*answers: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(each)
            await writer.drain()

    return answer


def asking(raw: bytes, size: int = -1) -> Callable[..., Awaitable[bytes]]:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(raw)
        return await (reader.read() if size < 0 else reader.readexactly(size))

    return ask


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
GET = b"GET / HTTP/1.1\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"


def test_requests_of_one_client_are_answered_in_order_over_one_connection(tmp_path: Path) -> None:
    both = OK + b"ab" + OK + b"cd"
    got, connections = through(
        tmp_path, answering(OK + b"ab", OK + b"cd"), asking(GET + GET, len(both))
    )
    assert (got, connections) == (both, 1)


def test_an_answer_that_ends_with_its_connection_ends_the_clients(tmp_path: Path) -> None:
    got, _ = through(tmp_path, answering(b"HTTP/1.1 200 OK\r\n\r\nall of it"), asking(GET))
    assert got == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"


def test_a_client_of_http_1_0_gets_content_without_chunks(tmp_path: Path) -> None:
    got, _ = through(tmp_path, answering(CHUNKS), asking(b"GET / HTTP/1.0\r\n\r\n"))
    assert got == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde"


def test_answers_that_only_promise_are_left_out(tmp_path: Path) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    got, _ = through(tmp_path, answering(early + CHUNKS), asking(GET, len(CHUNKS)))
    assert got == CHUNKS


def test_the_head_does_not_wait_for_the_body(tmp_path: Path) -> None:
    begin, end = CHUNKS[:50], CHUNKS[50:]
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin[: begin.index(b"\r\n\r\n") + 4])
        await asked.wait()
        writer.write(begin[begin.index(b"\r\n\r\n") + 4 :] + end)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET)
        got = await reader.readuntil(b"\r\n\r\n")
        asked.set()
        return got + await reader.readexactly(len(CHUNKS) - len(got))

    assert through(tmp_path, answer, ask)[0] == CHUNKS


def test_a_server_may_answer_before_it_has_everything(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    raw = b"POST / HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n" + b"a" * 100_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await reader.read()

    assert through(tmp_path, answer, asking(raw))[0] == refusal


@pytest.mark.parametrize("coding", [b"Content-Length: 300000", b"Transfer-Encoding: chunked"])
def test_long_bodies_go_up_as_they_come_and_may_wait_to_be_asked_for(
    coding: bytes, tmp_path: Path
) -> None:
    body = b"x" * 300_000
    wire = body if b"Length" in coding else b"493E0\r\n" + body + b"\r\n0\r\n\r\n"
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(len(wire)))
        writer.write(OK + b"ok")
        await writer.drain()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\n" + coding + b"\r\n\r\n")
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        return asked + await reader.readexactly(len(OK) + 2)

    got, _ = through(tmp_path, answer, ask)
    assert got == b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"ok"
    assert seen[1] == wire
    assert coding in seen[0]
    assert b"Expect" not in seen[0]


def test_more_than_an_answer_is_no_answer_to_the_next_request(tmp_path: Path) -> None:
    got, connections = through(
        tmp_path,
        answering(CHUNKS + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b""),
        asking(GET, len(CHUNKS)),
    )
    assert (got, connections) == (CHUNKS, 1)
