"""Sources of a recording and their addresses; they run side by side until they are stopped."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record.folder import Recording

SYNC_S = 1.0
_JOIN_S = 10.0
LAST_S = 5.0
"""What a source that is behind may still read once it is stopped."""
HTTP = ("http", "https")


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
