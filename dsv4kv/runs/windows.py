"""What a machine did during one stretch of time: polls joined to windows by time."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4kv.runs.telemetry import GpuSamples, MeasuredWindow, Samples, Telemetry

REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "voltage reliability",
}
"""NVML's clock event reasons that are limits; idle (0x1) and a user's clocks (0x2) are not."""

_STEADY = 0.02  # a step of 15 MHz is 0.8 % of a clock: two are noise, more are a change
_NEAR_NS = 400_000_000  # two of the seldom polls

Value = int | float
Column = Sequence[Value | None] | None


@dataclass(frozen=True)
class WindowState:
    """The machine during a window; None where it was not recorded."""

    sm_clock_mhz: tuple[Value, Value] | None = None
    """Lowest and highest clock of the multiprocessors."""
    memory_clock_mhz: tuple[Value, Value] | None = None  # likewise the memory's
    limits: dict[str, float] = field(default_factory=dict)
    """What held clocks down, and for which share of the time."""
    power_w: float | None = None  # mean power
    temperature_c: Value | None = None  # highest temperature
    other_processes: Value | None = None  # most other processes that computed on the GPU at once
    cpu_mhz: tuple[Value, Value] | None = None
    """Lowest and highest clock of the CPU that the run was on."""
    other_cpus: float | None = None  # CPUs that others kept busy, in the mean

    @property
    def clock_moved(self) -> bool:
        """Whether the multiprocessors' clock was not one and the same all the time."""
        if self.sm_clock_mhz is None:
            return False
        low, high = self.sm_clock_mhz
        return high - low > _STEADY * high

    @property
    def is_limited(self) -> bool:
        """Whether clocks were held down or moved."""
        return bool(self.limits) or self.clock_moved


def window_state(telemetry: Telemetry, window: MeasuredWindow) -> WindowState:
    """Join what was polled to a window."""
    gpu, checks, host = telemetry.gpu_samples, telemetry.gpu_checks, telemetry.host_samples
    power_mw = _values(gpu, "power_mw", window)
    busy_ns = _growth(host, "machine_busy_ns", window)
    own_ns = _growth(host, "own_cpu_ns", window)
    return WindowState(
        sm_clock_mhz=_range(_values(gpu, "sm_clock_mhz", window)),
        memory_clock_mhz=_range(_values(gpu, "memory_clock_mhz", window)),
        limits=_limits(gpu, window),
        power_w=sum(power_mw) / len(power_mw) / 1e3 if power_mw else None,
        temperature_c=max(_values(gpu, "temperature_c", window), default=None),
        other_processes=max(_values(checks, "other_processes", window), default=None),
        cpu_mhz=_range(_values(host, "cpu_mhz", window)),
        other_cpus=max(0.0, (busy_ns[0] - own_ns[0]) / busy_ns[1]) if busy_ns and own_ns else None,
    )


def _limits(gpu: GpuSamples | None, window: MeasuredWindow) -> dict[str, float]:
    """Share of the window's polls by the name of the reason that they reported."""
    reasons = [int(bits) for bits in _values(gpu, "reasons", window)]
    counts = {name: sum(bool(bits & bit) for bits in reasons) for bit, name in REASONS.items()}
    return {name: count / len(reasons) for name, count in counts.items() if count}


def _values(samples: Samples | None, column: str, window: MeasuredWindow) -> list[Value]:
    """Values of the polls inside a window; where there are none, of the polls around it."""
    series: Column = getattr(samples, column, None)
    if samples is None or series is None:
        return []
    first = bisect_left(samples.at_ns, window.started_ns)
    last = bisect_right(samples.at_ns, window.ended_ns)
    if first < last:
        return [value for value in series[first:last] if value is not None]
    near = range(max(0, first - 1), min(last + 1, len(series)))
    earliest, latest = window.started_ns - _NEAR_NS, window.ended_ns + _NEAR_NS
    around = [series[i] for i in near if earliest <= samples.at_ns[i] <= latest]
    return [value for value in around if value is not None]


def _growth(
    samples: Samples | None, column: str, window: MeasuredWindow
) -> tuple[Value, int] | None:
    """Growth of a counter between the polls around a window, and the ns between; None without."""
    series: Column = getattr(samples, column, None)
    if samples is None or series is None:
        return None
    before = bisect_right(samples.at_ns, window.started_ns) - 1
    after = bisect_left(samples.at_ns, window.ended_ns)
    if before < 0 or after >= len(series) or before == after:
        return None
    start, end = series[before], series[after]
    if start is None or end is None:
        return None
    return end - start, samples.at_ns[after] - samples.at_ns[before]


def _range(values: Sequence[Value]) -> tuple[Value, Value] | None:
    return (min(values), max(values)) if values else None
