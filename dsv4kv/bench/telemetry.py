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
from typing import IO, Any, Self, TypeVar

from dsv4kv.processes import python, with_package
from dsv4kv.runs.parts import GpuChecks, GpuSamples, HostSamples, MeasuredWindow, Part
from dsv4kv.runs.parts import Telemetry as TelemetryRecord

THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons that make a sample worthless: hardware slowdown, thermal slowdown by
software and by hardware, power brake. The power cap is how the part is meant to run."""

INTERVAL_NS = 40_000_000  # 25 Hz; drivers renew most values every 20 to 100 ms

_MODULE = "dsv4kv.bench.polling"
_PATIENCE_S = 5.0  # for the first poll and the last: a driver that hangs is not waited for
_LOOK_S = 0.005


Polls = list[dict[str, Any]]
"""Answers of each poll by name, and ``at``, when it was made: of ``perf_counter_ns``."""


@dataclass
class Readings:
    """Everything that was polled."""

    often: Polls = field(default_factory=list)  # the GPU's state at every poll
    seldom: Polls = field(default_factory=list)  # processes on it at every fifth
    host: Polls = field(default_factory=list)  # the host's
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
        if kind == "absent":
            found.absent.update(answers)
        else:
            getattr(found, kind).append(answers)
    return found


class Telemetry:
    """Polls from ``with`` to its end; never raises because something cannot be polled."""

    def __init__(self, gpu_uuid: str | None = None, interval_ns: int = INTERVAL_NS) -> None:
        self.started_ns = perf_counter_ns()  # when it began
        self.interval_ns = interval_ns  # between two polls
        # what was measured during the polls, at times of ``perf_counter_ns``
        self.windows: list[MeasuredWindow] = []
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
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self.readings = self._polled()
            if died:
                self.readings.absent["telemetry"] = "polling ended before the run did"
        if self._lines is not None:
            self._lines.close()

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        started_ns = perf_counter_ns()
        try:
            yield
        finally:
            ended_ns = perf_counter_ns()
            self.windows.append(
                MeasuredWindow(name=name, started_ns=started_ns, ended_ns=ended_ns)
            )

    def was_throttled(self, started_ns: int, ended_ns: int) -> bool:
        """Whether a poll so far in a span, or the last before it, found the GPU throttled."""
        often = self._polled().often
        at_ns = [poll["at"] for poll in often]
        first = max(0, bisect_right(at_ns, started_ns) - 1)
        last = bisect_right(at_ns, ended_ns)
        return any((poll.get("reasons") or 0) & THROTTLED for poll in often[first:last])

    def describe(self) -> TelemetryRecord:
        readings, began_ns = self.readings, self.started_ns
        spans = [(each.started_ns - began_ns, each.ended_ns - began_ns) for each in self.windows]
        return TelemetryRecord(
            interval_ns=self.interval_ns,
            windows=[
                each.model_copy(update={"started_ns": start, "ended_ns": end})
                for each, (start, end) in zip(self.windows, spans, strict=True)
            ],
            gpu_samples=_samples(GpuSamples, readings.often, began_ns),
            gpu_checks=_samples(GpuChecks, readings.seldom, began_ns),
            host_samples=_samples(HostSamples, readings.host, began_ns),
            absent=dict(sorted(readings.absent.items())),
        )

    def _polled(self) -> Readings:
        if self._lines is None or self._lines.closed:
            return self.readings
        size = os.fstat(self._lines.fileno()).st_size
        return parse_lines(os.pread(self._lines.fileno(), size, 0).splitlines())


P = TypeVar("P", bound=Part)


def _samples(part: type[P], polls: Polls, began_ns: int) -> P | None:
    if not polls:
        return None
    answered = {name for poll in polls for name, answer in poll.items() if answer is not None}
    columns = {name: [poll.get(name) for poll in polls] for name in answered - {"at"}}
    at_ns = [poll["at"] - began_ns for poll in polls]
    return part.model_validate({"at_ns": at_ns, **columns})
