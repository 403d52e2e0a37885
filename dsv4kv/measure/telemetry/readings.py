"""What polls have found, as columns."""

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

Column = list[Any]


@dataclass
class Table:
    """Polls of one kind.

    Attributes:
        at_ns: When each was, of ``perf_counter_ns``.
        columns: Answers by name, as many as polls; None where there was none.
    """

    at_ns: list[int] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)

    def add(self, at_ns: int, answers: dict[str, Any]) -> None:
        """Add one poll."""
        for name in answers:
            self.columns.setdefault(name, [None] * len(self.at_ns))
        self.at_ns.append(at_ns)
        for name, column in self.columns.items():
            column.append(answers.get(name))


@dataclass
class Readings:
    """Everything that was polled.

    Attributes:
        facts: What does not change of the GPU; empty without one.
        often: Its state at every poll.
        seldom: Its state at every fifth.
        host: The host's.
        absent: What could not be read, or not every time, and why.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    often: Table = field(default_factory=Table)
    seldom: Table = field(default_factory=Table)
    host: Table = field(default_factory=Table)
    absent: dict[str, str] = field(default_factory=dict)


def parse_lines(lines: Iterable[bytes]) -> Readings:
    """Read what ``poll`` wrote; a line that was cut off is left out."""
    found = Readings()
    tables = {"often": found.often, "seldom": found.seldom, "host": found.host}
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
            tables[kind].add(answers.pop("at"), answers)
    return found


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # where a system has them


class HostReader:
    """Reads a machine's state while process ``pid`` is measured on it.

    Attributes:
        absent: What could not be read, and why.
    """

    def __init__(self, pid: int, cpus: Path = Path("/sys/devices/system/cpu")) -> None:
        """Read the clocks of CPUs below ``cpus``."""
        self.absent: dict[str, str] = {}
        self._pid, self._cpus = pid, cpus

    def read(self) -> dict[str, int | float]:
        """Load average, clock of the CPU that the process is on, and processor times so far."""
        readers: dict[str, Callable[[], int | float]] = {
            "load_1min": lambda: os.getloadavg()[0],
            "cpu_mhz": self._clock_mhz,
            "machine_busy_ns": _machine_busy_ns,
            "own_cpu_ns": self._own_cpu_ns,
        }
        found: dict[str, int | float] = {}
        for name, read in readers.items():
            try:
                found[name] = read()
            except OSError as error:
                self.absent[name] = error.strerror or str(error)
            except (psutil.Error, RuntimeError, ValueError, TypeError, AttributeError) as error:
                self.absent[name] = getattr(error, "msg", "") or "not in the expected format"
        return found

    def _clock_mhz(self) -> int:
        # psutil reads the clock of every CPU, hundreds of files on a server at every poll
        cpu = psutil.Process(self._pid).cpu_num()
        return int((self._cpus / f"cpu{cpu}/cpufreq/scaling_cur_freq").read_text()) // 1000

    def _own_cpu_ns(self) -> int:
        times = psutil.Process(self._pid).cpu_times()
        busy_s: float = times.user + times.system
        return round(busy_s * 1e9)


def _machine_busy_ns() -> int:
    times = psutil.cpu_times()
    busy_s = sum(float(getattr(times, name, 0.0)) for name in _BUSY)
    return round(busy_s * 1e9)


def memory_peak_bytes() -> int:
    """Most memory that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
