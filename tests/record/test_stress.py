"""Healthy streams come through whole beside clients and servers that mean it ill.

Server and clients are in this process; the proxy is one that has 256 descriptors.
"""

import asyncio
import gc
import json
import signal
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import ClientError, ClientSession, TCPConnector

from dsv4kv.record.folder import read_stream
from tests.ports import free_port
from tests.record.serving import recording, until_open

PATH = "/v1/chat/completions"
REQUESTS, PER_S, ATTACKS, IDLE, EVENTS = 150, 60.0, 4, 400, 5


def stream_of(number: int) -> list[bytes]:
    """The events of a healthy answer; no two are equal."""
    events: list[Any] = [{"id": f"c-{number}", "t": f"{number}-{n} " * 40} for n in range(EVENTS)]
    usage = {"prompt_tokens": 300 + number % 7, "completion_tokens": EVENTS}
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


async def serve(reader: StreamReader, writer: StreamWriter, seen: Counter[str]) -> None:
    """A server that answers as the body of a request asks it to."""
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            seen[head.split(" ")[1]] += 1
            length = head.partition("content-length:")[2].split("\r\n")[0]
            asked = json.loads(await reader.readexactly(int(length or 0)) or "{}")
            if "number" not in asked:
                writer.write(ANSWERS.get(asked.get("mode"), EVIL))
                await asyncio.sleep(0.02)
                break
            writer.write(CHUNKED)
            for event in stream_of(asked["number"]):
                writer.write(chunk(event))
                await writer.drain()
                await asyncio.sleep(0.004)
            writer.write(chunk(b""))
    writer.close()


def request_of(body: dict[str, Any], *fields: bytes) -> bytes:
    """A request for tokens."""
    sent = json.dumps(body).encode()
    head = [f"POST {PATH} HTTP/1.1".encode(), b"Host: a", *fields]
    head.append(b"Content-Length: %d" % len(sent))
    return b"\r\n".join(head) + b"\r\n\r\n" + sent


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
OPENING = f"POST {PATH} HTTP/1.1\r\nHost: a\r\n".encode()
HOSTILE: list[list[bytes]] = [
    *([request_of({"mode": mode, "messages": ["a"]})] for mode in ANSWERS),
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
    [request_of({"mode": "huge", "messages": ["a" * 60_000]})] * 3,
]
"""What hostile clients send, a part after the other."""


async def attack(port: int) -> None:
    """One hostile exchange after the other; every third ends with a reset."""
    for number in count():
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
                writer.close()
        await asyncio.sleep(0.03)


async def idle(port: int, filled: asyncio.Event) -> None:
    """Connections that ask for nothing, opened again where they are closed."""
    lines: dict[StreamReader, StreamWriter] = {}
    for number in count():
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(2.0 if len(lines) < IDLE else 0.0):
                lines.update([await asyncio.open_connection("127.0.0.1", port)])
        if number < IDLE:
            continue
        filled.set()
        for reader in [each for each in lines if each.at_eof()]:
            lines.pop(reader).close()
        await asyncio.sleep(0.025)


async def ask(client: ClientSession, url: str, number: int, wrong: list[object]) -> None:
    """One healthy request, and how its answer differs, if it does."""
    try:
        async with asyncio.timeout(30.0):
            body = {"number": number, "messages": [f"{number} " * 200]}
            async with client.post(url + PATH, json=body) as answer:
                if await answer.read() != b"".join(stream_of(number)):
                    wrong.append(number)
    except (ClientError, OSError) as error:
        wrong.append(error)


async def run(folder: Path) -> tuple[list[object], set[str], list[float]]:
    """What was wrong, which paths the server saw, and the proxy's memory in MiB at every tenth."""
    seen, wrong, port, filled = Counter[str](), list[object](), free_port(), asyncio.Event()
    server = await asyncio.start_server(partial(serve, seen=seen), "127.0.0.1", 0)
    made = recording(folder, 256, port, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        await until_open(port)
        ill = [asyncio.create_task(attack(port)) for _ in range(ATTACKS)]
        ill.append(asyncio.create_task(idle(port, filled)))
        await filled.wait()
        memory, asking, url = list[float](), list[asyncio.Task[None]](), f"http://127.0.0.1:{port}"
        async with ClientSession(connector=TCPConnector(limit=0)) as client:
            for number in range(REQUESTS):
                asking.append(asyncio.create_task(ask(client, url, number, wrong)))
                await asyncio.sleep(1 / PER_S)
                if number % 10 == 0:
                    memory.append(psutil.Process(made.pid).memory_info().rss / 2**20)
            await asyncio.gather(*asking)
        for each in ill:
            each.cancel()
    finally:
        made.send_signal(signal.SIGINT)
        said, _ = await asyncio.to_thread(made.communicate)
    server.close()
    assert made.returncode == 0, said
    return wrong, {*seen}, memory


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of hostile connections that are left
def test_healthy_streams_are_whole_and_nobody_elses_beside_hostile_ones(tmp_path: Path) -> None:
    wrong, seen, memory = asyncio.run(run(tmp_path / "recording"))
    gc.collect()
    assert wrong == []
    assert not any("smuggled" in path for path in seen)
    assert memory[-1] < memory[1] + 32, memory
    rows = list(read_stream(tmp_path / "recording", "requests"))
    whole = [row["end"] == "done" and row.get("output_tokens") == EVENTS for row in rows]
    assert sum(whole) == REQUESTS
