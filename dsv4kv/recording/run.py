"""Runs the sources of a recording side by side until all have ended or somebody ends them."""

from collections.abc import Callable, Sequence
from threading import Event as Stop
from threading import Thread
from time import monotonic

from dsv4kv.recording.folder import Record, Recording
from dsv4kv.recording.source import Source

SYNC_S = 1.0
_JOIN_S = 10.0


class Live:
    """Counts what is written, for a line about it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._begun_s = clock, clock()
        self._lately: tuple[float, int] = (self._begun_s, 0)
        self.batches = self.gaps = self.samples = self.requests = 0
        self.input_tokens = self.cached_tokens = 0

    def hear(self, stream: str, record: Record) -> None:
        """Count a record."""
        if record.get("what") == "gap" and stream == "events":
            self.gaps += record["last"] - record["first"] + 1
        elif stream == "events":
            self.batches += "events" in record
        elif stream == "metrics":
            self.samples += "values" in record
        elif stream == "requests" and "input_tokens" in record:
            self.requests += 1
            if "cached_tokens" in record:
                self.input_tokens += record["input_tokens"]
                self.cached_tokens += record["cached_tokens"]

    def line(self) -> str:
        """What has been recorded; requests per second are those since the last line."""
        now_s = self._clock()
        before_s, before = self._lately
        self._lately = now_s, self.requests
        rate = (self.requests - before) / max(now_s - before_s, 1e-9)
        hits = self.cached_tokens / self.input_tokens if self.input_tokens else None
        parts = [
            f"{now_s - self._begun_s:,.0f} s",
            f"{self.requests:,} requests ({rate:,.1f}/s)",
            "hit rate by the server " + ("not known" if hits is None else f"{hits:.1%}"),
            f"{self.batches:,} batches of events",
            f"{self.gaps:,} missing",
            f"{self.samples:,} samples",
        ]
        return ", ".join(parts)


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
    """Wait; less where the last thread ends before."""
    end_s = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end_s - monotonic()))


def _guarded(source: Source, stop: Stop, failures: list[BaseException]) -> None:
    try:
        source.run(stop)
    except BaseException as error:  # raised again where the others are ended
        failures.append(error)
