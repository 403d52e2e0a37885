"""Healthy streams come through whole beside clients and servers that mean it ill."""

import asyncio
import json
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, TCPConnector

from dsv4kv.record import proxy as proxies
from dsv4kv.record.folder import read_stream
from tests.record.serving import proxied

PATH = "/v1/chat/completions"
REQUESTS, ATTACKERS, IDLE = 150, 12, 120
_EVENTS = 5


def stream_of(number: int) -> list[bytes]:
    """The events of a healthy answer; no two are equal."""
    events: list[Any] = [
        {"id": f"c-{number}", "text": f"{number}-{n} " * 40} for n in range(_EVENTS)
    ]
    usage = {"prompt_tokens": 300 + number % 7, "completion_tokens": _EVENTS}
    events.append({"id": f"c-{number}", "choices": [], "usage": usage})
    return [f"data: {json.dumps(each)}\n\n".encode() for each in events]


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
HUGE = b'{"id": "h", "usage": {"prompt_tokens": 2147483647, "completion_tokens": 1}}'
ANSWERS = {
    "twice": CHUNKED + chunk(b"once") + chunk(b"") + EVIL * 3,
    "behind": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nonce" + EVIL,
    "huge": CHUNKED + chunk(HUGE) + chunk(b""),
    "nested": CHUNKED + chunk(b'{"usage":' * 7_000) + chunk(b""),
    "broken": CHUNKED + chunk(b"once") + b"zz\r\n",
    "cut": CHUNKED + chunk(b"once"),
    "both": CHUNKED[:-2] + b"Content-Length: 4\r\n\r\nevil",
    "head": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 10_000,
    "long": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 2**20,
    "garbage": b"\x00\xff" * 500,
}
"""What a hostile server says."""


class Server:
    """Answers as the body of a request asks it to; ``seen``: paths that were asked for."""

    def __init__(self) -> None:
        self.seen = Counter[str]()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            self.seen[head.split(" ")[1]] += 1
            length = head.partition("content-length:")[2].split("\r\n")[0]
            asked = json.loads(await reader.readexactly(int(length or 0)) or "{}")
            if "number" in asked:
                writer.write(CHUNKED)
                for event in [*stream_of(asked["number"]), b""]:
                    writer.write(chunk(event))
                    await writer.drain()
                    await asyncio.sleep(0.004)
            else:
                writer.write(ANSWERS[asked["mode"]])
                await asyncio.sleep(0.02)
        writer.close()


def asking(mode: str, text: str = "a") -> bytes:
    sent = json.dumps({"mode": mode, "messages": [text]}).encode()
    return OPENING + b"Content-Length: %d\r\n\r\n%b" % (len(sent), sent)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
OPENING = f"POST {PATH} HTTP/1.1\r\nHost: a\r\n".encode()
HOSTILE: list[list[bytes]] = [
    *([asking(mode)] for mode in ANSWERS),
    [
        OPENING + b"Connection: Content-Length\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
        SMUGGLED,
    ],
    [OPENING + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED],
    [OPENING + b"Content-Length: 3\r\nContent-Length: 40\r\n\r\nabc" + SMUGGLED],
    [OPENING + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED],
    [OPENING + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\nzz\r\n"],
    [OPENING + b"Content-Length: 99999\r\n\r\n{"],
    [OPENING, *[b"X-A: b\r\n"] * 300],
    [OPENING + b"X-A: ", *[b"a" * 1_000] * 30],
    [b"\x16\x03\x01\x02\x00\x01\x00"],
    [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"],
    [asking("huge", "a" * 60_000)] * 3,
]
"""What hostile clients send, a part after the other."""


async def attack(port: int, first: int) -> None:
    """One hostile exchange after the other; every third ends with a reset."""
    for number in count(first):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(OSError, TimeoutError), closing(writer):
            async with asyncio.timeout(0.3):
                for part in HOSTILE[number % len(HOSTILE)]:
                    if not writer.transport.is_closing():
                        writer.write(part)
                    await asyncio.sleep(0)
                if number % 3:
                    await reader.read()
                else:
                    linger = struct.pack("ii", 1, 0)
                    line = writer.get_extra_info("socket")
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await asyncio.sleep(0.03)


async def idle(port: int) -> None:
    """Connections that ask for nothing, opened again where they are closed."""
    lines: dict[StreamReader, StreamWriter] = {}
    try:
        while True:
            if len(lines) < IDLE:
                lines.update([await asyncio.open_connection("127.0.0.1", port)])
            for reader in [each for each in lines if each.at_eof()]:
                lines.pop(reader).close()
            await asyncio.sleep(0.002 if len(lines) < IDLE else 0.025)
    finally:
        for writer in lines.values():
            writer.close()


@pytest.mark.slow
def test_healthy_streams_are_whole_and_nobody_elses_beside_hostile_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "_MOST_DESCRIPTORS", 192)
    made, folder = Server(), tmp_path / "recording"

    async def ask(client: ClientSession, url: str, number: int) -> bytes:
        await asyncio.sleep(number / 60)
        body = {"number": number, "messages": [f"{number} " * 200]}
        async with asyncio.timeout(30), client.post(url + PATH, json=body) as answer:
            return await answer.read()

    async def test() -> list[bytes]:
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, proxied(folder, upstream) as (url, _):
            port = urlsplit(url).port or 0
            attacks = [attack(port, 2 * number) for number in range(ATTACKERS)]
            ill = [asyncio.create_task(each) for each in (idle(port), *attacks)]
            await asyncio.sleep(1.0)
            async with ClientSession(connector=TCPConnector(limit=0)) as client:
                found = await asyncio.gather(*(ask(client, url, n) for n in range(REQUESTS)))
            for task in ill:
                task.cancel()
            await asyncio.gather(*ill, return_exceptions=True)
            return found

    found = asyncio.run(test())
    assert found == [b"".join(stream_of(number)) for number in range(REQUESTS)]
    rows = list(read_stream(folder, "requests"))
    whole = [row for row in rows if row["end"] == "done" and row.get("output_tokens") == _EVENTS]
    assert len(whole) == REQUESTS
    assert len(rows) > 1.3 * REQUESTS  # hostile ones came as well
    assert not any("smuggled" in path for path in made.seen)
