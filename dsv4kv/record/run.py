"""Sources of a recording, their addresses, and requests to servers that are waited for.

Sources run until they are stopped, all side by side. Requests are bounded in time and bytes.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlsplit

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record.folder import Recording

if TYPE_CHECKING:
    from aiohttp import ClientResponse

SYNC_S = 1.0
_JOIN_S = 10.0
LAST_S = 5.0
"""What a source that is behind may still read once it is stopped."""
HTTP = ("http", "https")
MOST_BYTES = 2**24
"""Of an answer; a line of one is not longer either."""


class Source(Protocol):
    """Runs in a thread of its own and writes what it receives."""

    def run(self, stop: Event) -> None:
        """Listen until ``stop`` is set or nothing more comes; raises ``Dsv4kvError``."""


def parse_url(url: str, schemes: Collection[str], sentence: str) -> SplitResult:
    """The parts of an address that has a host, of one of the schemes; raises ``ConfigError``."""
    try:
        url.encode()  # which fails at half characters, as the next does at long names
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        good = parts.scheme in schemes and host and host.isprintable() and (parts.port or True)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(sentence)
    return parts


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
    from aiohttp import ClientError, ClientSession, ClientTimeout

    async def run() -> Answer:
        async with (
            asyncio.timeout(max(0.001, limit_s)),
            ClientSession(auto_decompress=False, timeout=ClientTimeout(total=None)) as session,
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


def fail_with_connection(answer: "ClientResponse") -> None:
    """Raise for the reader of an answer whose connection ends early.

    aiohttp 3.14 ends the connection at a malformed chunk, and says so only to the next request.
    """
    from aiohttp import ClientPayloadError

    def fail(closed: "asyncio.Future[Any]") -> None:
        if not closed.cancelled():
            closed.exception()  # is no news
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(ClientPayloadError("the answer is malformed"))

    protocol = answer.connection and answer.connection.protocol
    if protocol is not None and (closed := protocol.closed) is not None:
        closed.add_done_callback(fail)


def run(
    sources: Sequence[Source],
    recording: Recording,
    *,
    limit_s: float | None = None,
    tick: Callable[[], object] = lambda: None,
    warn: Callable[[str], object] = lambda _: None,
) -> None:
    """Listen to all sources; sync every second, then ``tick``; raises ``Dsv4kvError``.

    Ends when every source has, after ``limit_s``, by Ctrl-C, or when one fails. All received data
    is then written. Where the recording cannot be, or another source fails for other reasons than
    how it was asked for, proxies go on: ``warn`` is given a sentence.
    """
    stop, failures = Event(), list[BaseException]()
    # Python 3.11 takes a thread for ended once Ctrl-C has interrupted its join
    ended = [Event() for _ in sources]
    threads = [
        Thread(target=_guarded, args=(source, stop, failures, end), daemon=True)
        for source, end in zip(sources, ended, strict=True)
    ]
    proxies = [end for each, end in zip(sources, ended, strict=True) if hasattr(each, "passes_on")]
    end_s = None if limit_s is None else monotonic() + limit_s
    begun, warned = list[Event](), False

    def over() -> bool:
        if end_s is not None and monotonic() >= end_s:
            return True
        if _why(recording, failures):
            return all(end.is_set() for end in proxies)
        return bool(failures) or all(end.is_set() for end in ended)

    try:
        for thread, end in zip(threads, ended, strict=True):
            thread.start()
            begun.append(end)
        while not over():
            if (why := _why(recording, failures)) and not warned:
                warned = True
                warn(f"{why} Requests are passed on until Ctrl-C.")
            wait_s = min(monotonic() + SYNC_S, inf if end_s is None else end_s)
            for end in ended:
                end.wait(max(0.0, wait_s - monotonic()))
            with suppress(TraceError):
                recording.sync()
            tick()
    finally:
        stop.set()
        try:
            for end in begun:
                end.wait(_JOIN_S)
            with suppress(TraceError):
                recording.sync()
        finally:
            if failure := recording.failure or next(iter(failures), None):
                raise failure


def _why(recording: Recording, failures: Sequence[BaseException]) -> str:
    """Why nothing more is written though requests can be passed on; empty where all is well."""
    if recording.failure:
        return str(recording.failure)
    said = (str(e) if isinstance(e, TraceError) else f"{e!r}." for e in failures)
    return "" if any(isinstance(each, ConfigError) for each in failures) else next(said, "")


def _guarded(source: Source, stop: Event, failures: list[BaseException], ended: Event) -> None:
    try:
        source.run(stop)
    except BaseException as error:  # raised again where the others are ended
        failures.append(error)
    finally:
        ended.set()
