"""Requests to servers and their answers, bounded in time and bytes."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
)
from aiohttp.connector import Connection

MOST_BYTES = 2**24
"""Of an answer; a line of one is not longer either."""
_MOST_PROMISES = 100  # 1xx before an answer
_FRAMING_BYTES = 2**18  # that come without any of the body: sizes of chunks, trailers


def read_little(transport: asyncio.Transport | None) -> None:
    """In a turn of the loop: asyncio's 256 KiB are 43,000 small chunks, 0.1 s for all others."""
    if transport is not None:  # it may have been lost
        transport.max_size = 2**13  # type: ignore[attr-defined]


class BoundedResponse(ClientResponse):
    """The server's answer, where aiohttp 3.14 reads any number of promises (1xx) and of zeros."""

    async def start(self, connection: Connection) -> ClientResponse:  # noqa: D102 (aiohttp's)
        assert connection.protocol is not None
        read_little(connection.transport)
        read, left = connection.protocol.read, _MOST_PROMISES
        receive, framing, body = connection.protocol.data_received, 0, 0

        def receive_bounded(data: bytes) -> None:
            nonlocal framing, body
            receive(data)
            if self.content is not None:
                framing = framing + len(data) if self.content.total_bytes == body else 0
                body = self.content.total_bytes
            if framing > _FRAMING_BYTES:
                self.content.set_exception(ClientError("it sends chunks without content"))
                self.close()

        async def read_bounded() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise ClientError("it promises, and does not answer")
            return await read()

        connection.protocol.read = read_bounded  # type: ignore[method-assign]
        connection.protocol.data_received = receive_bounded  # type: ignore[method-assign]
        return await super().start(connection)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int  # 200, if all is well
    headers: Mapping[str, str]  # by their names, whatever their case
    content: bytes  # the body; empty where its lines were taken as they came
    is_whole: bool  # false for a body that was cut, as it is too long


def ask(
    url: str,
    limit_s: float,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    most_bytes: int = MOST_BYTES,
    take: Callable[[bytes], object] | None = None,
) -> Answer:
    """The answer to a ``GET``, or to a ``POST`` of ``body``, over a connection of its own.

    Redirects are not followed. Every line of an answer with status 200 is given to ``take`` at
    once, until that returns something true. Raises ``TimeoutError``, ``ConnectionError``.
    """

    async def run() -> Answer:
        async with (
            asyncio.timeout(max(0.001, limit_s)),
            ClientSession(
                auto_decompress=False,
                timeout=ClientTimeout(total=None),
                response_class=BoundedResponse,
            ) as session,
            session.request(
                "GET" if body is None else "POST",
                url,
                data=body,
                headers={"Accept-Encoding": "identity"} | dict(headers or {}),
                allow_redirects=False,
            ) as answer,
        ):
            fail_with_connection(answer)
            content, length = bytearray(), 0
            async for part in answer.content.iter_any():
                length += len(part)
                content += part
                if take and answer.status == 200 and b"\n" in part:
                    *lines, content = content.split(b"\n")
                    if any(take(bytes(line)) for line in lines):
                        break
                if length > most_bytes:
                    break
            whole = length <= most_bytes
            return Answer(answer.status, answer.headers, bytes(content[:most_bytes]), whole)

    try:
        kept, runner = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), asyncio.Runner()
        try:
            runner.get_loop()  # Ctrl-C in the middle of it would leave half a loop behind
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
            return runner.run(run())
        finally:
            runner.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
    except (ClientError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno:
            why = os.strerror(error.errno) if error.errno > 0 else error.strerror or why
        raise ConnectionError(why) from None


def fail_with_connection(answer: ClientResponse) -> None:
    """Raise for the reader of an answer whose connection ends early.

    aiohttp 3.14 ends the connection at a malformed chunk, and says so only to the next request.
    """

    def fail(closed: asyncio.Future[Any]) -> None:
        if not closed.cancelled():
            closed.exception()  # is no news
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(ClientPayloadError("the answer is malformed"))

    protocol = answer.connection and answer.connection.protocol
    if protocol is not None and (closed := protocol.closed) is not None:
        closed.add_done_callback(fail)
