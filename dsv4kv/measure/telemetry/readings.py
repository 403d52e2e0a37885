"""What polls have found, as columns."""

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq, steal
_PROCESSOR_FIELD = 36  # of /proc/PID/stat, counted after the program's name


class HostReader:
    """Reads a machine's state while process ``pid`` is measured on it.

    Attributes:
        absent: What could not be read, and why.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        """Read below ``root``."""
        self.absent: dict[str, str] = {}
        self._own_stat = root / "proc" / str(pid) / "stat"
        self._stat = root / "proc" / "stat"
        self._cpus = root / "sys" / "devices" / "system" / "cpu"
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")

    def read(self) -> dict[str, int | float]:
        """Load average, clock of the CPU that the process is on, and processor times so far."""
        readers: dict[str, Callable[[], int | float]] = {
            "load_1min": lambda: os.getloadavg()[0],
            "cpu_mhz": self._clock_mhz,
            "machine_busy_ns": self._machine_busy_ns,
            "own_cpu_ns": self._own_cpu_ns,
        }
        found: dict[str, int | float] = {}
        for name, read in readers.items():
            try:
                found[name] = read()
            except (OSError, ValueError, IndexError) as error:
                reason = error.strerror if isinstance(error, OSError) else None
                self.absent[name] = reason or "not in the expected format"
        return found

    def _clock_mhz(self) -> int:
        cpu = self._own_fields()[_PROCESSOR_FIELD]
        return int((self._cpus / f"cpu{cpu}/cpufreq/scaling_cur_freq").read_text()) // 1000

    def _machine_busy_ns(self) -> int:
        fields = self._stat.read_text().split("\n", 1)[0].split()[1:]
        return self._tick_ns * sum(int(fields[i]) for i in _BUSY_FIELDS)

    def _own_cpu_ns(self) -> int:
        user, system = self._own_fields()[11:13]
        return self._tick_ns * (int(user) + int(system))

    def _own_fields(self) -> list[str]:
        """Fields after the program's name, which may hold blanks and brackets."""
        return self._own_stat.read_text().rpartition(")")[2].split()


def memory_peak_bytes() -> int:
    """Most memory that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
