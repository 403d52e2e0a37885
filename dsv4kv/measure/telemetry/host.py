"""What a host does beside the run: load, clock and processor time, by /proc and /sys."""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

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
                self.absent[name] = reason or "not told in the expected form"
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
