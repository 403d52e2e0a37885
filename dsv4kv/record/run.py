"""Sources of a recording: each runs until it is stopped, all side by side."""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from math import inf
from threading import Event, Thread
from threading import Event as Stop
from time import monotonic
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record.folder import Record, Recording

SYNC_S = 1.0
_JOIN_S = 10.0
LAST_S = 5.0
"""What a source that is behind may still read once it is stopped."""
PROXY = "proxy:"
"""How the name of a proxy begins, as a source."""
HTTP = ("http", "https")


class Source(Protocol):
    """Runs in a thread of its own and writes what it receives."""

    def run(self, stop: Stop) -> None:
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


def missing_package(package: str) -> ConfigError:
    """The sentence about a package of the extra."""
    return ConfigError(
        f"recording needs the package {package}, which is not installed: "
        "pip install 'dsv4kv[record]'."
    )


def is_exchange(row: Record) -> bool:
    """Whether a row of ``requests`` is a request of its own, as a proxy's is, whatever its id."""
    return str(row.get("source", "")).startswith(PROXY)


def says_hits(row: Record) -> bool:
    """Whether a row of ``requests`` has its hits, no more of them than tokens of the prompt."""
    return bool(0 <= row.get("cached_tokens", -1) <= row.get("input_tokens", -1))


class Turns:
    """Which request of its id a row of a log is of: a client may choose an id, and repeat it.

    The n-th row of a source that begins a request and the n-th that ends one are of one request,
    as are those of two sources. Of the ``most`` ids seen last.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._seen, self._most = dict[Any, int](), most

    def key(self, row: Record, otherwise: object) -> tuple[object, int]:
        """The id, ``otherwise`` where the row has none, and the number of its request."""
        ends = "last_s" in row or "output_tokens" in row
        name = row.get("id", otherwise)
        seen = row.get("source"), name, ends
        turn = self._seen[seen] = self._seen.pop(seen, -1) + 1
        if len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]
        return name, turn


def count_requests(rows: Iterable[Record]) -> int:
    """How many requests there are: of those in a log, several rows may be of one."""
    seen, logged, exchanges, turns = set[object](), set[tuple[object, int]](), 0, Turns()
    for number, row in enumerate(rows):
        if is_exchange(row):
            exchanges += 1
            seen.add(row.get("id", f"row {number}"))
        else:
            logged.add(turns.key(row, f"row {number}"))
    return exchanges + sum(name not in seen for name, _ in logged)


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
    is then written. Where the recording cannot be, proxies go on: ``warn`` is given a sentence.
    """
    stop, failures = Stop(), list[BaseException]()
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
        if recording.failure:
            return all(end.is_set() for end in proxies)
        return bool(failures) or all(end.is_set() for end in ended)

    try:
        for thread, end in zip(threads, ended, strict=True):
            thread.start()
            begun.append(end)
        while not over():
            if recording.failure and not warned:
                warned = True
                warn(f"{recording.failure} Requests are passed on until Ctrl-C.")
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


def _guarded(source: Source, stop: Stop, failures: list[BaseException], ended: Event) -> None:
    try:
        source.run(stop)
    except BaseException as error:  # raised again where the others are ended
        failures.append(error)
    finally:
        ended.set()
