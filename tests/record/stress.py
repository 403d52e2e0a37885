"""Healthy streams through the proxy beside hostile clients and answers.

Server, proxy and hostile clients are processes; the proxy has 256 descriptors.
"""

import asyncio
import json
import signal
import socket
import struct
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientError, ClientSession, TCPConnector

from dsv4kv.record.folder import read_stream
from tests.ports import free_port

PATH = "/v1/chat/completions"
IDLE = 1_000
_EVENTS, _PAUSE_S = 5, 0.004
_PATIENCE_S = 30.0
_AGAIN_PER_S = 40.0  # of idle connections


def stream_of(number: int) -> list[bytes]:
    """The events of a healthy answer; no two are equal."""
    events: list[Any] = [
        {"id": f"c-{number}", "text": f"{number}-{n} " * 40} for n in range(_EVENTS)
    ]
    usage = {"prompt_tokens": 300 + number % 7, "completion_tokens": _EVENTS}
    events.append({"id": f"c-{number}", "choices": [], "usage": usage})
    return [f"data: {json.dumps(each)}\n\n".encode() for each in events]


def chunk(part: bytes) -> bytes:
    """A part of a body in chunks."""
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
            mode = asked.get("mode")
            if mode is None:
                said = json.dumps(seen).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
                )
            elif mode == "stream":
                writer.write(CHUNKED)
                for event in stream_of(asked["number"]):
                    writer.write(chunk(event))
                    await writer.drain()
                    await asyncio.sleep(_PAUSE_S)
                writer.write(chunk(b""))
            else:
                writer.write(ANSWERS[mode])
                await asyncio.sleep(0.02)
                break
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
        await asyncio.sleep(1 / _AGAIN_PER_S)


@dataclass
class Outcome:
    """What healthy clients saw; ``rss``: of the proxy, in MiB."""

    whole: int = 0  # answers
    wrong: Counter[str] = field(default_factory=Counter)
    rss: list[float] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)  # requests that reached the server, by path
    rows: int = 0  # of healthy requests


async def ask(client: ClientSession, url: str, number: int, found: Outcome) -> None:
    """One healthy request, and how its answer differs, if it does."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            body = {"mode": "stream", "number": number, "messages": [f"{number} " * 200]}
            async with client.post(url + PATH, json=body) as answer:
                content = await answer.read()
    except (ClientError, OSError) as error:
        found.wrong[type(error).__name__] += 1
        return
    found.whole += content == b"".join(stream_of(number))


async def healthy(url: str, requests: int, rate: float, proxy: int) -> Outcome:
    """Ask ``rate`` requests a second."""
    found, process = Outcome(), psutil.Process(proxy)
    async with (
        ClientSession(connector=TCPConnector(limit=0)) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(requests):
            group.create_task(ask(client, url, number, found))
            await asyncio.sleep(1 / rate)
            if number % max(1, requests // 8) == 0:
                found.rss.append(process.memory_info().rss / 2**20)
    found.rss.append(process.memory_info().rss / 2**20)
    return found


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[tuple[int, str]]:
    """A process and its first line; it ends as by Ctrl-C."""
    made = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert made.stdout is not None
    try:
        yield made.pid, (await made.stdout.readline()).decode().strip() if "-m" in command else ""
    finally:
        with suppress(ProcessLookupError):
            made.send_signal(signal.SIGINT)
        await made.communicate()
        assert made.returncode == 0, (command, made.returncode)


async def until_open(port: int) -> None:
    """Wait until somebody listens."""
    while True:
        with suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return
        await asyncio.sleep(0.05)


async def run(requests: int, rate: float, hostile: int) -> Outcome:
    """All of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored, children ignore
    own = [sys.executable, "-m", "tests.record.stress"]
    port = free_port()
    folder = Path(tempfile.mkdtemp()) / "recording"
    async with process(*own, "serve") as (_, direct):
        record = f"ulimit -n 256; exec {sys.executable} -P -m dsv4kv record {folder} --quiet "
        async with process("bash", "-c", f"{record} --proxy {port}={direct}") as (pid, _):
            await until_open(port)
            async with process(*own, str(port), str(hostile)):
                found = await healthy(f"http://127.0.0.1:{port}", requests, rate, pid)
        async with ClientSession() as client, client.get(direct + "/seen") as seen:
            found.seen = json.loads(await seen.read())
    rows = list(read_stream(folder, "requests"))
    found.rows = sum(row["end"] == "done" and row.get("output_tokens") == _EVENTS for row in rows)
    return found


async def listen() -> None:
    """Be the server."""
    seen = Counter[str]()
    server = await asyncio.start_server(partial(serve, seen=seen), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def trouble(port: int, hostile: int) -> None:
    """Be the clients who mean it ill."""
    async with asyncio.TaskGroup() as group:
        for _ in range(hostile):
            group.create_task(attack(port))
        if hostile:
            group.create_task(idle(port, filled := asyncio.Event()))
            await filled.wait()
        print("", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(listen() if sys.argv[1] == "serve" else trouble(*map(int, sys.argv[1:])))
