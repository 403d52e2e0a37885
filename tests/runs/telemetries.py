"""Made-up telemetry: a GPU polled 25 times a second through windows of half a second."""

from typing import Any

from dsv4kv.runs import parts as tm

INTERVAL_NS = 40_000_000
WINDOW_NS = 500_000_000
PERIOD_NS = 700_000_000
"""From the begin of a window to the begin of the next: warm-up lies between them."""


def make_window(index: int, **changes: Any) -> tm.MeasuredWindow:
    """The window of that number, cold and of an operation."""
    started_ns = PERIOD_NS * index + 150_000_000
    facts: dict[str, Any] = {
        "name": f"gather_{index}", "layer_type": "csa", "temperature": "cold",
        "started_ns": started_ns, "ended_ns": started_ns + WINDOW_NS, "converged": True,
    }  # fmt: skip
    return tm.MeasuredWindow(**facts | changes)


def make_gpu_samples(windows: int, **columns: Any) -> tm.GpuSamples:
    """Polls through so many windows; columns are lists, or functions of the nanoseconds."""
    at_ns = list(range(0, PERIOD_NS * windows + 100_000_000, INTERVAL_NS))
    steady = {"sm_clock_mhz": 1_980, "memory_clock_mhz": 3_201, "power_mw": 512_000}
    steady |= {"reasons": 0, "temperature_c": 61}
    told = {name: [value] * len(at_ns) for name, value in steady.items()} | {
        name: [column(at) for at in at_ns] if callable(column) else column
        for name, column in columns.items()
    }
    return tm.GpuSamples(at_ns=at_ns, **told)


def make_telemetry(count: int = 3, **changes: Any) -> tm.Telemetry:
    """A GPU at one clock that nothing holds down."""
    at_ns = list(range(0, PERIOD_NS * count + 200_000_000, 5 * INTERVAL_NS))
    facts: dict[str, Any] = {
        "interval_ns": INTERVAL_NS,
        "windows": [make_window(index) for index in range(count)],
        "gpu_samples": make_gpu_samples(count),
        "gpu_checks": tm.GpuChecks(at_ns=at_ns, other_processes=[0] * len(at_ns)),
        "host_samples": tm.HostSamples(
            at_ns=at_ns, cpu_mhz=[3_700] * len(at_ns), machine_busy_ns=at_ns, own_cpu_ns=at_ns
        ),
        "absent": {},
    }
    return tm.Telemetry(**facts | changes)
