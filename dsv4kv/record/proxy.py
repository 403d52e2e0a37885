"""A proxy in front of an OpenAI-compatible server that records times and token counts.

It passes everything on as it comes, in both directions: bodies, statuses, headers other than the
connection's. Each request for tokens gets a row: its arrival, the times of the first and last byte
of the answer, its ``usage``, how it ended. Nothing else is written, and nothing about the client.

Each request has its own connection to the server, so that a stray answer reaches no client.
"""

import asyncio
import re
import resource
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from logging import CRITICAL, Logger
from threading import Event as Stop
from time import monotonic, time
from typing import Any
from urllib.parse import SplitResult

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    StreamReader,
    TCPConnector,
    web,
)
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage
from yarl import URL

from dsv4kv.errors import ConfigError, TraceError, mask_url
from dsv4kv.processes import Confined
from dsv4kv.record import Veil, usage
from dsv4kv.record.convert import PROXY, is_answered
from dsv4kv.record.folder import Record, Recording
from dsv4kv.record.http import BoundedResponse, fail_with_connection, read_little
from dsv4kv.record.run import HTTP, parse_url

_LOOPBACK = "127.0.0.1"
_RECORDED = ("/completions", "/completions/batch", "/responses", "/messages", "/generate")
_KEPT_BODY_BYTES = 2**23  # of a request; a longer one gets no ids
_KEPT_BYTES = 2**27  # of all running requests
_LONG_BYTES = 2**14  # longer bodies are read in another process: threads share an interpreter
_SMALL_BYTES = 2**16  # smaller bodies are read before the server is asked
_CONNECT_S = 30.0
_IDLE_S = 30.0  # of a connection without a whole head
_GRACE_S = 1.0  # an idle connection is closed for others then; less in a flood of such
_LEAST_GRACE_S = 0.05
_CROWDED_BYTES_S = 2**14  # of a body while others wait: a slower one has _GRACE_S, and is closed
_KEPT_S = 2.5  # the same for one that has sent a request before
_STALL_S = 120.0  # for a client that neither sends its body nor reads its answer
_LEAST_BYTES_S = 64.0  # of a body: a byte now and then would keep a place from others for ever
_FINISH_S = 2.5  # for running requests when the proxy ends, and again after they are cut
_POLL_S = 0.05
_MOST_DESCRIPTORS = 8_192
_WAITING = 1_024
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # aiohttp sends none of these
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what a field's name is made of
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_VERSIONS = (HttpVersion10, HttpVersion11)
_NOT_PLAIN = "a request that is not plain HTTP/1.1"
_OWN_DESCRIPTORS = 64  # the recording's and the other sources'
_LEAST_DESCRIPTORS = 128
_OF_CONNECTIONS = {
    *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate"),
    *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
}
"""Fields of one connection (RFC 9110 §7.6.1), and fields that are set anew."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a proxy listens, and the server behind it."""

    host: str
    port: int
    upstream: SplitResult

    @property
    def is_public(self) -> bool:
        """Whether other machines reach it."""
        return self.host not in {_LOOPBACK, "::1", "localhost"}


def parse_address(text: str) -> Address:
    """Read ``[HOST:]PORT=URL``; the default host is this machine only; raises ``ConfigError``.

    Keys and queries are the clients': a URL with a user or a query is refused.
    """
    listen, _, upstream = text.partition("=")
    host, _, port = listen.rpartition(":")
    sentence = f"--proxy {mask_url(text)}: give PORT=URL, such as 8001=http://127.0.0.1:8000."
    own = parse_url(f"tcp://{host or _LOOPBACK}:{port}", ("tcp",), sentence)
    server = parse_url(upstream.rstrip("/"), HTTP, sentence)
    odd = server.username is not None or server.query or server.fragment or " " in upstream
    if own.hostname is None or own.port is None or odd:
        raise ConfigError(sentence)
    near = {own.hostname, _LOOPBACK, "localhost", "::1", "0.0.0.0", "::"}
    if server.port == own.port and server.hostname in near:
        raise ConfigError(f"{sentence} This is the proxy's own address.")
    return Address(own.hostname, own.port, server)


class _Fault(Exception):
    """A sentence about a bad request for its client, and the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class _Answer(web.StreamResponse):
    """The server's answer on its way to the client; ``said``: names of the server's fields."""

    said: frozenset[str] = frozenset()
    _send_headers_immediately = False  # but together with the first part of the body


class _Request(web.BaseRequest):
    """A client's request; ``spoken``: its version, where another cannot be answered in it."""

    def __init__(self, message: RawRequestMessage, *rest: Any) -> None:
        self.spoken = message.version
        known = self.spoken if self.spoken in _VERSIONS else HttpVersion10
        more: list[Any] = [*rest, asyncio.get_running_loop()]
        super().__init__(message._replace(version=known), *more)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        added = {"content-type", "date", "server"}  # by aiohttp
        for name in added - response.said if isinstance(response, _Answer) else {"server"}:
            response.headers.pop(name, None)


@dataclass(slots=True)
class _Exchange:
    """A request on its way to the server and back."""

    request: web.BaseRequest
    arrival_s: float = field(default_factory=time)
    first_s: float = 0.0
    last_s: float = 0.0
    status: int = 0
    end: str = "server not reached"
    body: bytearray = field(default_factory=bytearray)
    is_kept: bool = True
    ends: usage.Ends = field(default_factory=usage.Ends)
    fault: _Fault | None = None
    answer: ClientResponse | None = None


class _Open:
    """Connections of clients, at most ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.busy = set[_Connection]()  # with a request that is being answered
        self.idle = dict[_Connection, float]()  # the others, and since when they are
        self.awaited = dict[_Connection, float]()  # busy ones whose body is awaited, since when
        self.grace_s = _GRACE_S  # how long one without a request is kept while others wait
        self.changed = asyncio.Event()  # set when a connection became idle or was closed

    def make_room(self) -> float:
        """Close a connection that sends nothing where there is no room; seconds to wait, or 0."""
        if len(self.idle) + len(self.busy) < self.limit:
            self.grace_s = min(_GRACE_S, 1.05 * self.grace_s)
            return 0.0
        self.changed.clear()
        now_s = monotonic()
        left_s = {
            each: (_KEPT_S if each.has_asked else self.grace_s) - (now_s - since_s)
            for each, since_s in self.idle.items()
        }
        left_s |= {each: _GRACE_S - (now_s - since_s) for each, since_s in self.awaited.items()}
        first = min(left_s, key=lambda each: left_s[each], default=None)
        if first is None:
            return _GRACE_S
        if left_s[first] <= 0:
            if self.idle.pop(first, None) is not None:
                self.grace_s = max(_LEAST_GRACE_S, 0.8 * self.grace_s)
            self.busy.discard(first)
            self.awaited.pop(first, None)
            first.line.abort()
        return max(0.0, left_s[first])


class _Connection(web.RequestHandler):
    """A client's connection.

    aiohttp 3.14 lets a handler wait for ever for a body with an error in it, and forgets a request
    whose head came together with that.
    """

    __slots__ = ("_body", "has_asked", "line", "open")

    def __init__(self, server: web.Server, opened: _Open, **settings: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self.open, self.has_asked = opened, False
        self._body: StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self.line = transport
        read_little(transport)
        self.open.idle[self] = monotonic()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.open.idle.pop(self, None)
        self.open.changed.set()

    def begin(self, body: StreamReader) -> None:
        """Start to answer a request."""
        self.open.idle.pop(self, None)
        self.open.busy.add(self)
        self.has_asked, self._body = True, body
        self._tell()

    def end(self) -> None:
        """The request is answered; another may follow."""
        self.open.busy.discard(self)
        self._body = None
        if self.transport is not None:
            self.open.idle[self] = monotonic()
        self.open.changed.set()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        own = f"dsv4kv record: {_NOT_PLAIN}.\n" if status == 400 else message
        return super().handle_error(request, status, exc, own)

    def data_received(self, data: bytes) -> None:
        head = data.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else len(data)
        super().data_received(data[:head])
        if head < len(data):
            super().data_received(data[head:])
        self._tell()

    def _tell(self) -> None:
        malformed = self._messages and not isinstance(self._messages[-1][0], RawRequestMessage)
        if malformed and self._body is not None and not self._body.is_eof():
            self._body.set_exception(_Fault("a body that is malformed"))


class Proxy:
    """Listens at an address until it is stopped; ``port``: where, 0 before."""

    passes_on = True  # whether it writes or not

    def __init__(
        self,
        number: int,
        address: Address,
        recording: Recording,
        veil: Veil,
        *,
        proxies: int = 1,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare to listen; raises ``ConfigError`` where too few files may be open.

        The ``number`` is of ``proxies``, which share the process's file descriptors; ``warn`` is
        given a sentence once, when clients have to wait for one.
        """
        self._name, self._address = f"{PROXY}{number}", address
        self._recording, self._veil = recording, veil
        self._url = address.upstream._replace(query="", fragment="")
        self._limit = max(4, min(_MOST_DESCRIPTORS, _descriptors() // proxies) // 2)
        self._warn, self._warned, self._loses = warn, False, False
        self._session: ClientSession | None = None
        self._writer = ThreadPoolExecutor(1)
        own = recording.salt, veil.grain
        self._prompts, self._long_prompts = usage.Prompts(*own), Confined(usage.Prompts, *own)
        self._hurries = False  # the recording ends: prompts that still wait are not looked into
        self._kept_bytes = 0
        self.port = 0

    def run(self, stop: Stop) -> None:
        """Pass requests on until ``stop`` is set; running requests then have 2.5 s to finish."""
        asyncio.run(self._listen(stop))

    async def _listen(self, stop: Stop) -> None:
        # of tasks of aiohttp 3.14 that end with their connection, which is recorded
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        clients = web.Server(self._serve, request_factory=_Request, handler_cancellation=True)
        runner = web.ServerRunner(clients, shutdown_timeout=_FINISH_S)
        await runner.setup()
        opened = _Open(self._limit)

        connect = partial(
            _Connection,
            clients,
            opened,
            access_log=None,
            logger=Logger("proxy", CRITICAL + 1),
            auto_decompress=False,
            keepalive_timeout=_IDLE_S,
            lingering_time=1.0,
        )
        loop, place = asyncio.get_running_loop(), (self._address.host, self._address.port)
        try:
            server = await loop.create_server(connect, *place, start_serving=False)
            listening = [each.dup() for each in server.sockets]
            for each in listening:
                each.listen(_WAITING)
        except OSError as error:
            raise ConfigError(
                f"--proxy: cannot listen on {place[0]}:{place[1]} ({error.strerror}): take "
                "another port."
            ) from None
        self._session = ClientSession(
            connector=TCPConnector(limit=0, force_close=True),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            response_class=BoundedResponse,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        self._session._retry_connection = False  # else aiohttp 3.14 sends a GET twice
        async with self._session:
            accepting = [
                loop.create_task(self._accept(each, opened, connect)) for each in listening
            ]
            self.port = server.sockets[0].getsockname()[1]
            while not stop.is_set():
                await asyncio.sleep(_POLL_S)
            self._hurries = True
            for task in accepting:
                task.cancel()
            await asyncio.gather(*accepting, return_exceptions=True)
            for each in listening:
                each.close()
            server.close()
            await runner.cleanup()
        self._writer.shutdown()

    async def _accept(
        self, listening: socket.socket, opened: _Open, connect: Callable[[], _Connection]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while wait_s := opened.make_room():
                if not self._warned:
                    self._warned = True
                    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                    self._warn(
                        f"--proxy: {self._limit:,} connections are open, the maximum with "
                        f"{limit:,} file descriptors; further clients wait. Raise `ulimit -n`."
                    )
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await opened.changed.wait()
            try:
                line, _ = await loop.sock_accept(listening)
                await loop.connect_accepted_socket(connect, line)
            except OSError:  # the client left, or other sources have taken the descriptors
                await asyncio.sleep(_POLL_S)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange, connection = _Exchange(request), request.protocol
        assert isinstance(connection, _Connection)
        connection.begin(request.content)
        try:
            return await self._pass(exchange)
        except _Fault as fault:
            exchange.end = "client left"
            return await _say(exchange, str(fault), fault.status)
        except (asyncio.CancelledError, ConnectionError):
            if exchange.end != "done":
                exchange.end = "client left"
            raise
        finally:
            exchange.last_s = time()
            connection.end()
            self._record(exchange)

    async def _pass(self, exchange: _Exchange) -> web.StreamResponse:
        request = exchange.request
        assert isinstance(request, _Request)
        if request.spoken not in _VERSIONS:
            raise _Fault(_NOT_PLAIN)
        target = _target(request)
        expected = request.headers.get("Expect", "")
        if expected and expected.lower() != "100-continue":
            raise _Fault(f"nothing but 100-continue can be expected, not {expected[:80]!a}", 417)
        if expected and request.version >= HttpVersion11:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        fields = _passed_on(request.raw_headers)
        data: bytes | AsyncIterator[bytes] | None = None
        if request.body_exists:
            data, length = self._upload(exchange), request.content_length
            if length is not None and length <= _SMALL_BYTES:
                data = b"".join([part async for part in data])
            elif length is not None:
                fields.append(("Content-Length", str(length)))
        url = URL(self._url.geturl() + target, encoded=True)
        assert self._session is not None
        asked = self._session.request(
            request.method, url, headers=fields, data=data, allow_redirects=False
        )
        try:
            answer = exchange.answer = await asked
            odd = answer.status < 200 or answer.version not in _VERSIONS
            if odd or _is_packed(answer.headers.getall("Transfer-Encoding", [])):
                answer.close()
                raise ClientError("it was asked for no other protocol")
        except (ClientError, OSError):
            if exchange.fault:
                raise exchange.fault from None
            return await _say(
                exchange, "the server cannot be reached, or its answer is no HTTP", 502
            )
        async with answer:
            return await self._answer(exchange, answer)

    async def _upload(self, exchange: _Exchange) -> AsyncIterator[bytes]:
        """Yield the body of a request as it comes; keep a copy until it is too long."""
        left_s, late_s, connection = _STALL_S, 0.0, exchange.request.protocol
        assert isinstance(connection, _Connection)
        try:
            while True:
                begun_s = monotonic()
                connection.open.awaited[connection] = begun_s - late_s
                try:
                    async with asyncio.timeout(left_s):
                        part = await exchange.request.content.readany()
                finally:
                    connection.open.awaited.pop(connection, None)
                if not part:
                    return
                waited_s = monotonic() - begun_s
                left_s = min(left_s + len(part) / _LEAST_BYTES_S - waited_s, _STALL_S)
                late_s = max(0.0, late_s + waited_s - len(part) / _CROWDED_BYTES_S)
                length = len(exchange.body) + len(part)
                if length > _KEPT_BODY_BYTES or self._kept_bytes + len(part) > _KEPT_BYTES:
                    self._let_go(exchange)
                if exchange.is_kept:
                    self._kept_bytes += len(part)
                    exchange.body += part
                yield part
        except TimeoutError:
            exchange.fault = _Fault("a body that does not come", 408)
        except _Fault as fault:
            exchange.fault = fault
        if exchange.answer:
            exchange.answer.close()
        raise exchange.fault

    async def _answer(self, exchange: _Exchange, answer: ClientResponse) -> web.StreamResponse:
        fail_with_connection(answer)
        exchange.status = answer.status
        exchange.ends = usage.Ends(answer.headers.get("Content-Encoding", ""))
        reason = answer.reason or ""
        passed = _Answer(status=answer.status, reason=None if _CONTROL.search(reason) else reason)
        fields = _passed_on(answer.raw_headers)
        fields = [each for each in fields if not _CONTROL.search(each[1])]
        passed.said = frozenset(name.lower() for name, _ in fields)
        for name, value in fields:
            passed.headers.add(name, value)
        passed.content_length = answer.content_length
        if any(name in exchange.request.headers for name in ("Transfer-Encoding", "Upgrade")):
            # aiohttp 3.14 puts trailers before the next request's fields, and drops the request
            # that comes with one that asks for another protocol
            passed.force_close()
        await passed.prepare(exchange.request)
        if not answer.content.total_bytes:
            exchange.request.writer.send_headers()
        try:
            while True:
                exchange.end = "server left"
                part = await answer.content.readany()
                exchange.end = "client left"
                if not part:
                    break
                exchange.first_s = exchange.first_s or time()
                async with asyncio.timeout(_STALL_S):
                    await passed.write(part)
                if answer.content.at_eof():
                    exchange.end = "done"
                await _take(exchange.ends.add(part))
            await passed.write_eof()
            exchange.end = "done"
        except (ClientError, OSError):
            if exchange.fault:
                exchange.end = "client left"
            if exchange.request.transport is not None:  # cut here as it was there
                exchange.request.transport.abort()
        return passed

    def _record(self, exchange: _Exchange) -> None:
        """Write the row of a request for tokens; a long one in another thread."""
        request, loop = exchange.request, asyncio.get_running_loop()
        if request.method != "POST" or not request.path.endswith(_RECORDED):
            self._let_go(exchange)
        elif len(exchange.body) > _LONG_BYTES:
            written = loop.run_in_executor(self._writer, self._write, exchange)
            written.add_done_callback(lambda _: self._let_go(exchange))
        else:
            self._write(exchange)
            self._let_go(exchange)

    def _let_go(self, exchange: _Exchange) -> None:
        self._kept_bytes -= len(exchange.body)
        exchange.is_kept, exchange.body = False, bytearray()

    def _write(self, exchange: _Exchange) -> None:
        if self._recording.failure:
            return
        row: Record = {
            "source": self._name,
            "arrival_s": exchange.arrival_s,
            "last_s": exchange.last_s,
            "status": exchange.status,
            "end": exchange.end,
        }
        if exchange.first_s:
            row["first_s"] = exchange.first_s
        with suppress(Exception):  # the row is written in any case
            row |= exchange.ends.row(self._veil)
        with suppress(Exception):
            tokens = row.get("input_tokens", 0) if is_answered(row) else None
            row |= self._read_body(exchange, tokens)
        with suppress(TraceError):  # the recording knows
            if not self._recording.write("requests", row, waits=False) and not self._loses:
                self._loses = True
                self._warn("--proxy: the disk is too slow, requests are passed on unrecorded.")

    def _read_body(self, exchange: _Exchange, tokens: int | None) -> Record:
        """What a body says; the first prompt's size of text pieces is the recording's."""
        body = bytearray() if self._hurries else exchange.body
        headers = {name.lower(): value for name, value in exchange.request.headers.items()}
        is_long = len(body) > _LONG_BYTES
        ask = partial(self._long_prompts.ask, "row") if is_long else self._prompts.row
        found: Record = ask(body, headers, tokens, self._recording.text_piece())
        place = found.get("place")
        if place and place != (settled := self._recording.text_piece(place)):
            found = ask(body, headers, tokens, settled)  # another's was first, in the meantime
        return found


async def _take(unpacking: Iterator[None]) -> None:
    """Let others go on between parts; a client that has them all may be gone before the last."""
    try:
        for _ in unpacking:
            await asyncio.sleep(0)
    finally:
        deque(unpacking, 0)


def _descriptors() -> int:
    """File descriptors for connections, after raising the limit to the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_DESCRIPTORS
    if limit < _LEAST_DESCRIPTORS:
        raise ConfigError(
            f"--proxy: {limit} file descriptors are allowed here, and it needs "
            f"{_LEAST_DESCRIPTORS}: run `ulimit -n 1024` first."
        )
    return limit - _OWN_DESCRIPTORS


def _target(request: web.BaseRequest) -> str:
    if request.method == "CONNECT":
        raise _Fault("CONNECT is for any server, and behind this proxy is one", 405)
    target = request.raw_path
    if elsewhere := _ELSEWHERE.match(target):  # an absolute URL: the server is ours
        target = target[elsewhere.end() :]
        target = target if target.startswith("/") else f"/{target}"
    if not target.startswith("/"):
        raise _Fault(f"{target[:80]!a} is no path of a server")
    codings = request.headers.getall("Transfer-Encoding", [])
    if _is_packed(codings) or not target.isascii():
        raise _Fault(_NOT_PLAIN)
    return target


def _is_packed(codings: Sequence[str]) -> bool:
    """Whether a body comes in more than chunks, by its fields ``Transfer-Encoding``."""
    return ",".join(codings).strip().lower() not in {"", "chunked"}


def _passed_on(raw: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    """Fields other than the connection's, spelled as they were the first time."""
    fields = [[each.decode("utf-8", "surrogateescape") for each in one] for one in raw]
    named = ",".join(value for name, value in fields if name.lower() == "connection").lower()
    own = _OF_CONNECTIONS.union(each.strip() for each in named.split(","))
    spelled: dict[str, str] = {}
    return [
        (spelled.setdefault(name.lower(), name), value)
        for name, value in fields
        if name.lower() not in own and _TOKEN.fullmatch(name)
    ]


async def _say(exchange: _Exchange, text: str, status: int) -> web.StreamResponse:
    exchange.status = status if status < 500 else 0
    own = web.Response(status=status, text=f"dsv4kv record: {text}.\n")
    own.force_close()
    await own.prepare(exchange.request)
    await own.write_eof()
    return own
