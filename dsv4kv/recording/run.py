"""Runs the sources of a recording side by side until all have ended or somebody ends them."""

from collections.abc import Callable, Sequence
from threading import Event as Stop
from threading import Thread
from time import monotonic
from typing import Any

from dsv4kv.recording.folder import Record, Recording
from dsv4kv.recording.metrics import Counted
from dsv4kv.recording.source import Source, is_exchange
from dsv4kv.units import counted

SYNC_S = 1.0
_KNOWN = 65_536
_JOIN_S = 10.0


class Live:
    """Counts what is written, for a line about it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._begun_s = clock, clock()
        self._lately: tuple[float, int] = (self._begun_s, 0)
        self._known: dict[Any, bool] = {}  # ids, and whether an exchange had it
        self._counted = dict[str, Counted]()
        self.batches = self.gaps = self.unread = self.samples = 0
        self.requests = self.without_usage = 0
        self.input_tokens = self.cached_tokens = 0

    def hear(self, stream: str, record: Record) -> None:
        """Count a record."""
        if stream == "events":
            self.batches += "events" in record
            self.unread += record.get("what") == "unreadable"
            if record.get("what") == "gap":
                self.gaps += record["last"] - record["first"] + 1
        elif stream == "metrics" and "values" in record:
            self.samples += 1
            self._counted.setdefault(record["source"], Counted()).add(record["values"])
        elif stream == "requests" and "input_tokens" in record:
            self._request(record)
        elif stream == "requests":
            self.without_usage += record.get("end") == "done"

    def _request(self, record: Record) -> None:
        """Logs have several lines of a request; the last thousands are known again."""
        name, exchange = record.get("id", self.requests), is_exchange(record)
        self.requests += name not in self._known or (exchange and self._known[name])
        self._known[name] = exchange or self._known.get(name, False)
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        if "cached_tokens" in record:
            self.input_tokens += record["input_tokens"]
            self.cached_tokens += record["cached_tokens"]

    def line(self) -> str:
        """What has been recorded; requests per second are those since the last line."""
        now_s = self._clock()
        before_s, before = self._lately
        self._lately = now_s, self.requests
        rate = (self.requests - before) / max(now_s - before_s, 1e-9)
        parts = [
            f"{now_s - self._begun_s:,.0f} s",
            f"{counted(self.requests, 'request')} ({rate:,.1f}/s)",
            f"hit rate by the server {self._hit_rate()}",
            f"{counted(self.batches, 'message')} of events",
            f"{self.gaps:,} missing",
            counted(self.samples, "sample"),
        ]
        if self.unread:
            parts.insert(5, f"{self.unread:,} that could not be read")
        if self.without_usage:
            parts.insert(2, f"{self.without_usage:,} without usage")
        return ", ".join(parts)

    def _hit_rate(self) -> str:
        """By its counters, where these are sampled, else by what it says of each request."""
        counters = [one for each in self._counted.values() if (one := each.hits())]
        hits = sum(found for _, found, _ in counters) if counters else self.cached_tokens
        asked = sum(total for _, _, total in counters) if counters else self.input_tokens
        return f"{hits / asked:.1%}" if asked else "not known"


def run(
    sources: Sequence[Source],
    recording: Recording,
    *,
    limit_s: float | None = None,
    tick: Callable[[], object] = lambda: None,
) -> None:
    """Listen to all sources; sync every second, then ``tick``.

    Ends when every source has, after ``limit_s``, or by Ctrl-C. What has come is written then.

    Raises:
        Dsv4kvError: A source cannot listen, or the recording cannot be written.
    """
    stop, failures = Stop(), list[BaseException]()
    threads = [
        Thread(target=_guarded, args=(each, stop, failures), daemon=True) for each in sources
    ]
    end_s = None if limit_s is None else monotonic() + limit_s
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failures:
            left_s = SYNC_S if end_s is None else min(SYNC_S, end_s - monotonic())
            if left_s <= 0:
                break
            _wait(threads, left_s)
            recording.sync()
            tick()
    finally:
        stop.set()
        for thread in threads:
            thread.join(_JOIN_S)
        recording.sync()
        if failures:
            raise failures[0]


def _wait(threads: Sequence[Thread], seconds: float) -> None:
    end_s = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end_s - monotonic()))


def _guarded(source: Source, stop: Stop, failures: list[BaseException]) -> None:
    try:
        source.run(stop)
    except BaseException as error:  # raised again where the others are ended
        failures.append(error)
