"""A server with an OpenAI-compatible API that streams, stalls, fails, leaves and sends much."""

import asyncio
import gzip
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

from aiohttp import web

from dsv4kv.record import Veil
from dsv4kv.record.folder import Record, Recording
from dsv4kv.record.proxy import Proxy, parse_address
from tests.record.sockets import wait_until

PIECES = 4


def usage(prompt_tokens: int, output_tokens: int = PIECES, cached_tokens: int = 0) -> Record:
    """What a server tells of a request."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    return counts | {"prompt_tokens_details": {"cached_tokens": cached_tokens}}


class Server:
    """Does what the body of a request asks for.

    Attributes:
        left: Set once a client has left a stalled answer.
        headers: Raw headers of the last request.
    """

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.headers: list[tuple[bytes, bytes]] = []
        self.seen = 0

    def app(self) -> web.Application:
        """What it serves."""
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_route("*", "/echo{path:.*}", self.echo)
        app.router.add_route("*", "/cut", self.cut)
        return app

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """What was asked, as it came."""
        self.headers = list(request.raw_headers)
        content = await request.read()
        headers = [("X-Path", request.raw_path), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
        return web.Response(body=content, headers=headers, status=203)

    async def cut(self, request: web.Request) -> web.StreamResponse:
        """Close the connection without an answer."""
        self.seen += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer as ``mode`` says."""
        body = await request.json()
        self.seen += 1
        how: Any = getattr(self, "_" + body.get("mode", "plain"))
        answer: web.StreamResponse = await how(request, body)
        return answer

    async def _plain(self, request: web.Request, body: Record) -> web.StreamResponse:
        told = usage(body.get("tokens", 300), cached_tokens=body.get("cached", 0))
        return web.json_response({"id": f"chatcmpl-{self.seen}", "choices": [], "usage": told})

    async def _packed(self, request: web.Request, body: Record) -> web.StreamResponse:
        document = {"id": "chatcmpl", "text": "a" * 10**6, "usage": usage(300, cached_tokens=256)}
        packed = gzip.compress(json.dumps(document).encode(), mtime=0)
        return web.Response(body=packed, headers={"Content-Encoding": body["coding"]})

    async def _stream(self, request: web.Request, body: Record) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        name = body.get("name", f"chatcmpl-{self.seen}")
        for number in range(PIECES):
            choice = {"index": 0, "delta": {"content": f'a "usage": {{}} é{number}'}}
            await response.write(_event({"id": name, "choices": [choice]}))
        told = usage(body.get("tokens", 300), cached_tokens=body.get("cached", 0))
        await response.write(_event({"id": name, "choices": [], "usage": told}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _stall(self, request: web.Request, body: Record) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(_event({"id": "chatcmpl-stall"}))
        try:
            await asyncio.sleep(60)
        finally:
            self.left.set()
        return response

    async def _fail(self, request: web.Request, body: Record) -> web.StreamResponse:
        return web.json_response({"error": {"message": "out of memory"}}, status=503)

    async def _leave(self, request: web.Request, body: Record) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async def _much(self, request: web.Request, body: Record) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(body["mib"]):
            await response.write(bytes([number % 251]) * 2**20)
        return response


def _event(document: Record) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, str]]:
    """A server and its address."""
    server = Server()
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, access_log=None, auto_decompress=False
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def recording(folder: Path, descriptors: int, port: int, upstream: str) -> Popen[str]:
    """A process that records a proxy and has so many descriptors."""
    command = f"ulimit -n {descriptors}; exec {sys.executable} -P -m dsv4kv record {folder} "
    command += f"--quiet --proxy {port}={upstream}"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored, children ignore
    return Popen(["bash", "-c", command], stdout=PIPE, stderr=STDOUT, text=True)


async def until_open(port: int) -> None:
    """Wait until somebody listens."""
    while True:
        with suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return
        await asyncio.sleep(0.05)


@contextmanager
def proxying(folder: Path, upstream: str) -> Iterator[tuple[str, list[Record]]]:
    """A proxy in front of it: its address, and the rows that it writes."""
    stop, rows = threading.Event(), list[Record]()

    def hear(stream: str, record: Record) -> None:
        if stream == "requests":
            rows.append(record)

    with Recording(folder, hear=hear) as recording:
        address = parse_address(f"0={upstream}")
        proxy = Proxy(0, address, recording, Veil(recording.salt))
        thread = threading.Thread(target=proxy.run, args=(stop,))
        thread.start()
        try:
            wait_until(lambda: proxy.port > 0 or not thread.is_alive())
            assert proxy.port
            yield f"http://127.0.0.1:{proxy.port}", rows
        finally:
            stop.set()
            thread.join()


@asynccontextmanager
async def proxied(folder: Path, upstream: str) -> AsyncIterator[tuple[str, list[Record]]]:
    """``proxying`` for a block in which the server runs."""
    manager = proxying(folder, upstream)
    entered = await asyncio.to_thread(manager.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
