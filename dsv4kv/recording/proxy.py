"""A proxy in front of an OpenAI-compatible server, which writes down when and how much.

Everything is passed on as it comes, in either direction: bodies, statuses, headers other than
those of the connection itself. Of each request for tokens there is a row: when it arrived, when
the first and the last byte of its answer went out, what its ``usage`` says, how it ended. Nothing
else of it is written, and nothing of who sent it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from logging import CRITICAL, Logger
from threading import Event as Stop
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dsv4kv.errors import ConfigError
from dsv4kv.recording.folder import Record, Recording
from dsv4kv.recording.source import missing_package
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

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

_LOOPBACK = "127.0.0.1"
_RECORDED = ("/completions", "/responses", "/messages", "/generate")
_OF_CONNECTIONS = {
    "connection",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""Headers that speak of one connection (RFC 9110 §7.6.1), and those answered here."""
_KEPT_BODY_BYTES = 2**23  # of a request; of a longer one no ids are made
_MOST_HEADER_BYTES = 2**16
_CONNECT_S = 30.0
_FINISH_S = 5.0  # for requests that run when the proxy is ended
_POLL_S = 0.05


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


class Proxy:
    """Listens at an address until it is told to stop.

    Attributes:
        port: Where it listens, once it does.
    """

    def __init__(self, number: int, address: Address, recording: Recording, veil: Veil) -> None:
        """``number``: of the proxy among those of the recording."""
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise missing_package("aiohttp") from None
        self._name, self._address = f"proxy:{number}", address
        self._recording, self._veil = recording, veil
        self._passed: dict[int, Mapping[str, str]] = {}  # the server's headers, until they go out
        self.port = 0

    def run(self, stop: Stop) -> None:
        """Pass requests on; those that run at the end may finish for a moment."""
        asyncio.run(self._serve(stop))

    async def _serve(self, stop: Stop) -> None:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

        session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

        async def pass_on(request: web.Request) -> web.StreamResponse:
            return await self._pass(request, session)

        async with session:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", pass_on)
            app.on_response_prepare.append(self._add_nothing)
            runner = web.AppRunner(
                app,
                access_log=None,
                logger=Logger("silent", CRITICAL + 1),  # it would tell of addresses
                handler_cancellation=True,
                auto_decompress=False,
                shutdown_timeout=_FINISH_S,
                max_line_size=_MOST_HEADER_BYTES,
                max_field_size=_MOST_HEADER_BYTES,
            )
            await runner.setup()
            try:
                await self._listen(web.TCPSite(runner, self._address.host, self._address.port))
                self.port = runner.addresses[0][1]
                while not stop.is_set():
                    await asyncio.sleep(_POLL_S)
            finally:
                await runner.cleanup()

    async def _listen(self, site: "web.TCPSite") -> None:
        try:
            await site.start()
        except OSError as error:
            place = f"{self._address.host}:{self._address.port}"
            raise ConfigError(
                f"--proxy: cannot listen on {place} ({error.strerror}): take another port."
            ) from None

    async def _pass(
        self, request: "web.Request", session: "ClientSession"
    ) -> "web.StreamResponse":
        """Pass a request on and its answer back; a row of it if it is for tokens."""
        exchange = _Exchange()
        try:
            return await self._exchange(request, session, exchange)
        except asyncio.CancelledError:
            exchange.end = "client left"
            raise
        finally:
            if request.method == "POST" and request.path.endswith(_RECORDED):
                self._write(request, exchange)

    async def _exchange(
        self, request: "web.Request", session: "ClientSession", exchange: "_Exchange"
    ) -> "web.StreamResponse":
        from aiohttp import ClientError, web
        from yarl import URL

        try:
            asked = session.request(
                request.method,
                URL(self._address.upstream + request.raw_path, encoded=True),
                headers=_passed_on(request.headers),
                data=exchange.asked(request) if request.body_exists else None,
                allow_redirects=False,
            )
            async with asked as answer:
                exchange.status = answer.status
                passed = _passed_on(answer.headers)
                response = web.StreamResponse(
                    status=answer.status, reason=answer.reason, headers=passed
                )
                self._passed[id(response)] = passed
                if _is_chunked(request, answer):
                    response.enable_chunked_encoding()
                exchange.end = "client left"  # until the server is asked for more
                await response.prepare(request)
                await self._answer(answer, response, exchange)
                return response
        except (ClientError, OSError, ValueError):
            if exchange.status:  # what has gone out cannot be taken back: it is cut as it was
                _cut(request)
                return response
            return web.Response(status=502, text="dsv4kv record: the server cannot be reached.\n")

    async def _add_nothing(self, request: "web.Request", response: "web.StreamResponse") -> None:
        """Take away what aiohttp adds of its own to an answer that is passed on."""
        passed = self._passed.pop(id(response), None)
        for name in ("Content-Type", "Date", "Server"):
            if passed is not None and name not in passed:
                response.headers.popall(name, None)

    async def _answer(
        self, answer: Any, response: "web.StreamResponse", ends: "_Exchange"
    ) -> None:
        parts = answer.content.iter_any()
        while True:
            ends.end = "server left"
            part = await anext(parts, None)
            if part is None:
                break
            ends.first_s = ends.first_s or time()
            ends.told.add(part)
            ends.end = "client left"
            await response.write(part)
        await response.write_eof()
        ends.end = "done"

    def _write(self, request: "web.Request", exchange: "_Exchange") -> None:
        row: Record = {
            "source": self._name,
            "arrival_s": exchange.arrival_s,
            "last_s": time(),
            "status": exchange.status,
            "end": exchange.end,
        }
        if exchange.first_s:
            row["first_s"] = exchange.first_s
        body = parse_body(bytes(exchange.body))
        row |= session_of(request.headers, body, self._veil) | exchange.told.told(self._veil)
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
    """What is known of a request so far."""

    def __init__(self) -> None:
        self.arrival_s, self.first_s = time(), 0.0
        self.status, self.end = 0, "server not reached"
        self.body, self.told = bytearray(), Ends()
        self._is_kept = True

    async def asked(self, request: "web.Request") -> AsyncIterator[bytes]:
        """The body as it comes; kept until it is too long."""
        async for part in request.content.iter_any():
            if len(self.body) + len(part) > _KEPT_BODY_BYTES:
                self._is_kept = False
                self.body.clear()
            if self._is_kept:
                self.body += part
            yield part


def _passed_on(headers: Any) -> Any:
    """Headers of an exchange, without those of its connections; repeated ones stay so."""
    from multidict import CIMultiDict

    named = {
        name.strip().lower()
        for value in headers.getall("Connection", ())
        for name in value.split(",")
    }
    kept, spelled = CIMultiDict[str](), dict[str, str]()
    for name, value in headers.items():
        if name.lower() not in _OF_CONNECTIONS | named:
            # aiohttp takes another spelling of a name for another value of it
            kept.add(spelled.setdefault(name.lower(), name), value)
    return kept


def _is_chunked(request: "web.Request", answer: Any) -> bool:
    """Whether an answer says its length piece by piece."""
    bare = request.method == "HEAD" or answer.status in {204, 304}
    return "Content-Length" not in answer.headers and not bare and request.version >= (1, 1)


def _cut(request: "web.Request") -> None:
    """End a connection in the middle of an answer, as the server did."""
    if request.transport is not None:
        request.transport.abort()
