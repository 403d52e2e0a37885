"""A proxy in front of an OpenAI-compatible server, which writes down when and how much.

Everything is passed on as it comes, in either direction: bodies, statuses, headers other than
those of the connection itself. Of each request for tokens there is a row: when it arrived, when
the first and the last byte of its answer went out, what its ``usage`` says, how it ended. Nothing
else of it is written, and nothing of who sent it.
"""

import asyncio
import ssl
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Stop
from time import monotonic, time
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.recording.folder import Record, Recording
from dsv4kv.recording.http import (
    CHUNKED,
    HEAD_BYTES,
    TO_END,
    Body,
    Head,
    Malformed,
    answer_length,
    format_head,
    read_answer,
    read_request,
    request_length,
)
from dsv4kv.recording.usage import (
    LEAST_TOKENS,
    Ends,
    parse_body,
    prompt_text,
    prompt_tokens,
    session_of,
    text_ids,
)
from dsv4kv.recording.veil import Veil

_LOOPBACK = "127.0.0.1"
_RECORDED = (b"/completions", b"/responses", b"/messages", b"/generate")
_KEPT_BODY_BYTES = 2**23  # of a request; of a longer one no ids are made
_SMALL_BYTES = 2**16  # a body of no more goes out together with its head
_CONNECT_S = 30.0
_IDLE_S = 3.0  # servers close connections that have had nothing to do for five seconds
_FINISH_S = 5.0  # for requests that run when the proxy is ended
_LINGER_S = 1.0
_POLL_S = 0.05
_PORTS = {"http": 80, "https": 443}
_UNREACHABLE = b"dsv4kv record: the server cannot be reached.\n"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a proxy listens and what is behind it."""

    host: str
    port: int
    upstream: str

    @property
    def is_public(self) -> bool:
        """Whether others than this machine reach it."""
        return self.host not in {_LOOPBACK, "::1", "localhost"}


def parse_address(text: str) -> Address:
    """Read ``[HOST:]PORT=URL``; without a host only this machine reaches it.

    Raises:
        ConfigError: It is none.
    """
    listen, _, upstream = text.partition("=")
    host, _, port = listen.rpartition(":")
    url = urlsplit(upstream)
    if not port.isdecimal() or not 0 <= int(port) < 2**16 or url.scheme not in {"http", "https"}:
        raise ConfigError(f"--proxy {text}: give PORT=URL, such as 8001=http://127.0.0.1:8000.")
    return Address(host.strip("[]") or _LOOPBACK, int(port), upstream.rstrip("/"))


class _Link(NamedTuple):
    """A connection to the server, and since when it has had nothing to do."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_s: float = 0.0

    def is_usable(self) -> bool:
        """Whether the server will likely take another request on it."""
        idle_s = monotonic() - self.idle_s
        return idle_s < _IDLE_S and not (self.writer.is_closing() or self.reader.at_eof())


class _Upstream:
    """The server behind a proxy, and connections to it that wait for a request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.path = parts.path.encode()
        self._fields = [(b"Host", parts.netloc.rpartition("@")[2].encode())]
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._fields.append((b"Authorization", b"Basic " + b64encode(user.encode())))
        self._name, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[_Link] = []

    async def connect(self) -> _Link:
        """A connection; raises ``OSError`` where there is none."""
        while self._idle:
            link = self._idle.pop()
            if link.is_usable():
                return link
            link.writer.close()
        place = self._name, self._port
        opening = asyncio.open_connection(*place, ssl=self._tls, limit=HEAD_BYTES)
        return _Link(*await asyncio.wait_for(opening, _CONNECT_S))

    def fields(self, head: Head) -> list[tuple[bytes, bytes]]:
        """What a request is sent on with; a client's own credentials go before the URL's."""
        own = self._fields[:1] if head.values(b"authorization") else self._fields
        return own + head.passed_on()

    def keep(self, link: _Link) -> None:
        """Take a connection back whose answer has come to its end."""
        self._idle.append(link._replace(idle_s=monotonic()))

    def close(self) -> None:
        """Close what waits."""
        for link in self._idle:
            link.writer.transport.abort()


class _Client(asyncio.StreamReaderProtocol):
    """A connection of a client; what is done for one that has left is not done any more."""

    task: asyncio.Task[Any] | None = None

    def eof_received(self) -> bool:
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()


class Proxy:
    """Listens at an address until it is stopped.

    Attributes:
        port: Where it listens, once it does.
    """

    def __init__(self, number: int, address: Address, recording: Recording, veil: Veil) -> None:
        """``number``: of the proxy among those of the recording."""
        self._name, self._address = f"proxy:{number}", address
        self._recording, self._veil = recording, veil
        self._upstream = _Upstream(address.upstream)
        self._failure: TraceError | None = None
        self._connected, self._busy = set[asyncio.Task[Any]](), set[asyncio.Task[Any]]()
        self.port = 0

    def run(self, stop: Stop) -> None:
        """Pass requests on; those that run at the end may finish for a moment."""
        asyncio.run(self._listen(stop))

    async def _listen(self, stop: Stop) -> None:
        loop = asyncio.get_running_loop()

        def accept() -> _Client:
            return _Client(asyncio.StreamReader(HEAD_BYTES, loop), self._serve, loop)

        place = self._address.host, self._address.port
        try:
            server = await loop.create_server(accept, *place)
        except OSError as error:
            raise ConfigError(
                f"--proxy: cannot listen on {place[0]}:{place[1]} ({error.strerror}): take "
                "another port."
            ) from None
        self.port = server.sockets[0].getsockname()[1]
        while not stop.is_set() and self._failure is None:
            await asyncio.sleep(_POLL_S)
        server.close()
        if self._busy:
            await asyncio.wait(self._busy, timeout=_FINISH_S)
        for task in self._connected:
            task.cancel()
        if self._connected:
            await asyncio.wait(self._connected)
        self._upstream.close()
        await asyncio.sleep(0)  # what is closed is closed in the loop's next round
        if self._failure is not None:
            raise self._failure

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client's requests, one after the other."""
        client, task = writer.transport.get_protocol(), asyncio.current_task()
        assert isinstance(client, _Client)
        assert task is not None
        client.task = task
        self._connected.add(task)
        try:
            await self._answer_all(task, reader, writer)
            await _end(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the proxy ends
        except TraceError as error:
            self._failure = error
        finally:
            self._connected.discard(task)
            self._busy.discard(task)
            client.task = None
            writer.close()

    async def _answer_all(
        self,
        task: asyncio.Task[Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Until the connection has to end."""
        stays = True
        while stays:
            try:
                head = await read_request(reader)
                self._busy.add(task)
                stays = await self._pass(head, reader, writer)
                self._busy.discard(task)
            except Malformed as error:
                _answer(writer, b"400 Bad Request", f"dsv4kv record: {error}.\n".encode())
                return

    async def _pass(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Pass a request on and its answer back; a row of it if it is for tokens."""
        exchange = _Exchange(head, reader, writer)
        try:
            return await exchange.run(self._upstream)
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            exchange.end = "client left"
            raise
        finally:
            path = head.start[1].partition(b"?")[0]
            if head.start[0] == b"POST" and path.endswith(_RECORDED):
                self._write(exchange)

    def _write(self, exchange: "_Exchange") -> None:
        row: Record = {
            "source": self._name,
            "arrival_s": exchange.arrival_s,
            "last_s": time(),
            "status": exchange.status,
            "end": exchange.end,
        }
        if exchange.first_s:
            row["first_s"] = exchange.first_s
        headers = {
            name.decode().lower(): value.decode("utf-8", "surrogateescape")
            for name, value in exchange.head.fields
        }
        body = parse_body(bytes(exchange.body))
        row |= session_of(headers, body, self._veil) | exchange.answer.row(self._veil)
        self._recording.write("requests", row | self._ids(body, row.get("input_tokens", 0)))

    def _ids(self, body: dict[str, Any], tokens: int) -> Record:
        """Ids of a prompt, by its tokens or by its text, if its length is known."""
        grain = self._veil.grain
        if given := prompt_tokens(body):
            return {"ids": self._veil.prompt(given), "grain": grain} if tokens else {}
        text = prompt_text(body)
        block_bytes = self._recording.place("requests", self._name)
        if block_bytes is None and tokens >= LEAST_TOKENS and text:
            block_bytes = len(text) / tokens * grain
        if not block_bytes or not tokens or not text:
            return {}
        ids = text_ids(text, tokens, block_bytes, self._veil)
        return {"ids": ids, "grain": grain, "ids_of": "text", "place": block_bytes}


class _Exchange:
    """A request on its way to the server and back; what is known of it so far."""

    def __init__(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """``head`` is the request's; what follows is with the client's ``reader``."""
        self.head, self._reader, self._writer = head, reader, writer
        self.arrival_s, self.first_s = time(), 0.0
        self.status, self.end = 0, "server not reached"
        self.body, self.answer = bytearray(), Ends()
        self._is_kept, self._stays, self._is_over = True, False, False
        self._waiting = b""

    async def run(self, upstream: _Upstream) -> bool:
        """Ask the server and pass its answer on; whether the client may ask for more.

        Raises:
            Malformed: The request is none.
            ConnectionError, IncompleteReadError, CancelledError: The client has left.
        """
        length = request_length(self.head)
        try:
            link = await upstream.connect()
        except (OSError, TimeoutError):
            self._refuse()
            return False
        upload = None
        kept = False
        try:
            upload = await self._ask(link, upstream, length)
            kept = await self._answer(link) and (upload is None or upload.done())
            return self._stays and (upload is None or upload.done())
        finally:
            if upload is not None:
                upload.cancel()
            if kept:
                upstream.keep(link)
            else:
                link.writer.transport.abort()

    async def _ask(
        self, link: _Link, upstream: _Upstream, length: int
    ) -> asyncio.Task[None] | None:
        """Send the request; of a long body what is left goes while the answer comes."""
        method, target, _ = self.head.start
        fields = upstream.fields(self.head)
        if length == CHUNKED:
            fields.append((b"Transfer-Encoding", b"chunked"))
        head = format_head((method, upstream.path + _path(target), b"HTTP/1.1"), fields)
        if self.head.tokens(b"expect") == [b"100-continue"]:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if 0 <= length <= _SMALL_BYTES:
            self.body += await self._reader.readexactly(length)
            link.writer.write(head + self.body)
            return None
        link.writer.write(head)
        return asyncio.create_task(self._upload(link, length))

    async def _upload(self, link: _Link, length: int) -> None:
        try:
            body = Body(self._reader, length)
            while part := await body.read():
                self._keep(part[1])
                link.writer.write(part[0])
                await link.writer.drain()
            self._is_over = body.is_over
        except OSError:
            pass  # the server takes no more: it may have answered
        except (Malformed, asyncio.IncompleteReadError):
            link.writer.transport.abort()

    def _keep(self, content: bytes) -> None:
        """Keep a body until it is too long."""
        if len(self.body) + len(content) > _KEPT_BODY_BYTES:
            self._is_kept = False
            self.body.clear()
        if self._is_kept:
            self.body += content

    async def _answer(self, link: _Link) -> bool:
        """Pass the answer on; whether the server's connection can be used again."""
        try:
            answer = await self._begin(link)
            length = answer_length(answer, self.head.start[0])
        except (OSError, asyncio.IncompleteReadError, Malformed):
            self._refuse()
            return False
        self.status = int(answer.start[1])
        self.answer = Ends(answer.tokens(b"content-encoding"))
        whole = self.head.start[2] == b"HTTP/1.1"
        stays = whole and length != TO_END and b"close" not in self.head.tokens(b"connection")
        fields = answer.passed_on()
        if length == CHUNKED and whole:
            fields.append((b"Transfer-Encoding", b"chunked"))
        if not stays:
            fields.append((b"Connection", b"close"))
        self._waiting = format_head((b"HTTP/1.1", *answer.start[1:]), fields)
        # with what is there already of the body, or as soon as that has to be waited for
        asyncio.get_running_loop().call_soon(self._send, b"")
        body = Body(link.reader, length)
        while True:
            self.end = "server left"
            try:
                part = await body.read()
            except (OSError, asyncio.IncompleteReadError, Malformed):
                await self._cut()
                return False
            self.end = "client left"
            if part is None:
                break
            self.first_s = self.first_s or time()
            self._send(part[0] if whole else part[1])
            self.answer.add(part[1])
            await self._writer.drain()
        self._send(b"")
        self.end, self._stays = "done", stays and not self._is_over
        lasts = answer.start[0] == b"HTTP/1.1" and b"close" not in answer.tokens(b"connection")
        return lasts and length != TO_END and not body.is_over

    def _send(self, part: bytes) -> None:
        if self._waiting or part:
            self._writer.write(self._waiting + part)
        self._waiting = b""

    async def _begin(self, link: _Link) -> Head:
        """The head of the answer, behind those that only say that it will come."""
        while True:
            answer = await read_answer(link.reader)
            if not answer.start[1].startswith(b"1"):
                return answer

    async def _cut(self) -> None:
        """End the client's connection in the middle of an answer, as the server did."""
        self._send(b"")
        with suppress(OSError):
            await self._writer.drain()
        self._writer.transport.abort()

    def _refuse(self) -> None:
        _answer(self._writer, b"502 Bad Gateway", _UNREACHABLE)


def _answer(writer: asyncio.StreamWriter, status: bytes, text: bytes) -> None:
    """An answer of the proxy's own, the last on its connection."""
    fields = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(text)),
        (b"Connection", b"close"),
    ]
    writer.write(format_head((b"HTTP/1.1", status), fields) + text)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End a connection so that what was written arrives: what still comes is taken first."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(HEAD_BYTES):
                pass


def _path(target: bytes) -> bytes:
    """What is asked for, without the server that a client may name before it."""
    if not target.startswith((b"http://", b"https://")):
        return target
    return b"/" + target.partition(b"://")[2].partition(b"/")[2]
