"""What a machine does while it is measured: clocks, limits, power, and who else is there.

A process of its own polls (``polling``): nothing here runs on the measuring thread or takes
its interpreter lock.
"""

import json
import os
import subprocess
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep
from typing import IO, Any, Self

from dsv4kv.bench.protocol import Timing
from dsv4kv.processes import python, with_package

THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that make a sample worthless: hardware slowdown, thermal slowdown by
software and by hardware, power brake. The power cap is how the part is meant to run."""

INTERVAL_NS = 40_000_000  # 25 Hz; drivers renew most values every 20 to 100 ms

_MODULE = "dsv4kv.bench.polling"
_PATIENCE_S = 5.0  # for the first poll and the last: a driver that hangs is not waited for
_LOOK_S = 0.005


@dataclass
class Table:
    """Polls of one kind."""

    at_ns: list[int] = field(default_factory=list)  # when each was, of ``perf_counter_ns``
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Answers by name, one for each poll; None where there was none."""

    def add(self, at_ns: int, answers: dict[str, Any]) -> None:
        """Add one poll."""
        for name in answers:
            self.columns.setdefault(name, [None] * len(self.at_ns))
        self.at_ns.append(at_ns)
        for name, column in self.columns.items():
            column.append(answers.get(name))


@dataclass
class Readings:
    """Everything that was polled."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What does not change of the GPU; empty without one."""
    often: Table = field(default_factory=Table)  # its state at every poll
    seldom: Table = field(default_factory=Table)  # its state at every fifth
    host: Table = field(default_factory=Table)  # the host's
    absent: dict[str, str] = field(default_factory=dict)
    """What could not be read, or not every time, and why."""


def parse_lines(lines: Iterable[bytes]) -> Readings:
    """Read what ``poll`` wrote; a line that was cut off is skipped."""
    found = Readings()
    for line in lines:
        try:
            answers = json.loads(line)
        except ValueError:
            continue
        kind = answers.pop("kind")
        if kind == "facts":
            found.facts = answers
        elif kind == "absent":
            found.absent |= answers
        else:
            getattr(found, kind).add(answers.pop("at"), answers)
    return found


@dataclass(frozen=True)
class Window:
    """A stretch of time in which one thing was measured; times of ``perf_counter_ns``."""

    name: str  # an operation, a peak, or a part of the run: ``serve``, ``memcpy``
    layer_type: str | None  # of an operation
    temperature: str | None  # ``cold`` or ``hot`` where an operation was timed both ways
    started_ns: int
    ended_ns: int
    timing: Timing | None = None  # how it was timed, where by ``protocol``


class Telemetry:
    """Polls from ``with`` to its end; never raises because something cannot be polled."""

    def __init__(self, gpu_uuid: str | None = None, interval_ns: int = INTERVAL_NS) -> None:
        """Poll the host, and the GPU of that UUID."""
        self.started_ns = perf_counter_ns()  # when it began
        self.interval_ns = interval_ns  # between two polls
        self.windows: list[Window] = []  # what was measured during the polls
        self.readings = Readings()  # what was polled, once it has ended
        self._uuid = gpu_uuid
        self._lines: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        uuid = [self._uuid] if self._uuid else []
        try:
            self._lines = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                python("-m", _MODULE, str(os.getpid()), str(self.interval_ns), *uuid),
                stdin=subprocess.PIPE,
                stdout=self._lines,
                stderr=subprocess.DEVNULL,
                env=with_package(os.environ),
                start_new_session=True,  # Ctrl-C ends the run and not its record
            )
        except OSError as error:
            self.readings.absent["telemetry"] = f"could not begin ({error.strerror})"
            return self
        # the host is polled last: from then on all that is measured has a poll before it
        for _ in range(round(_PATIENCE_S / _LOOK_S)):
            first_polls = os.pread(self._lines.fileno(), 1 << 16, 0)
            if b'"host"' in first_polls or self._process.poll() is not None:
                break
            sleep(_LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            died = self._process.poll() is not None
            self._stop(self._process)
            self.readings = self._polled()
            if died:
                self.readings.absent["telemetry"] = "polling ended before the run did"
        if self._lines is not None:
            self._lines.close()

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Keep when a part of the run begins and ends."""
        started_ns = perf_counter_ns()
        try:
            yield
        finally:
            self.windows.append(Window(name, None, None, started_ns, perf_counter_ns()))

    def was_throttled(self, started_ns: int, ended_ns: int) -> bool:
        """Whether a poll so far in a span, or the last before it, found the GPU throttled."""
        often = self._polled().often
        reasons = often.columns.get("reasons", [])
        first = max(0, bisect_right(often.at_ns, started_ns) - 1)
        last = bisect_right(often.at_ns, ended_ns)
        return any((each or 0) & THROTTLED for each in reasons[first:last])

    def _polled(self) -> Readings:
        if self._lines is None or self._lines.closed:
            return self.readings
        size = os.fstat(self._lines.fileno()).st_size
        return parse_lines(os.pread(self._lines.fileno(), size, 0).splitlines())

    def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
