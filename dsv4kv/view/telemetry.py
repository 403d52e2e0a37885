"""What the machine did while a case was measured."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from dsv4kv.runs.schema import Case
from dsv4kv.runs.telemetry import MeasuredWindow
from dsv4kv.runs.windows import WindowState, window_state
from dsv4kv.view import table as tb

BUSY_CPUS: Final = 0.5  # of other processes; one of our polls is a thousandth
_EXPECTED = {"power cap"}  # at full load on parts that are rated by their power
_MAX_NAMES = 4
_NS = 1e-9


def _span(ends: tuple[float, float]) -> str:
    low, high = (f"{end:,.0f}" for end in ends)
    return low if low == high else f"{low}–{high}"


_COLUMNS: dict[str, tuple[str, Callable[..., str]]] = {
    "SM MHz": ("sm_clock_mhz", _span),
    "memory MHz": ("memory_clock_mhz", _span),
    "W": ("power_w", tb.format_number),
    "°C": ("temperature_c", "{:.0f}".format),
    "CPU MHz": ("cpu_mhz", _span),
    "CPUs used by other processes": ("other_cpus", tb.format_number),
}

Window = tuple[str, MeasuredWindow, WindowState]
"""Its name, ``gather_topk csa cold``; when it was; and what the machine did."""


def _windows_of(case: Case) -> list[Window]:
    found = case.telemetry
    if found is None:
        return []
    words = ((each.name, each.layer_type, each.temperature) for each in found.windows)
    return [
        (" ".join(filter(None, name)), each, window_state(found, each))
        for name, each in zip(words, found.windows, strict=True)
    ]


def is_busy(case: Case) -> bool:
    """Whether other processes used CPUs or the GPU while it was measured."""
    states = [state for _, _, state in _windows_of(case)]
    return busy_cpus(case) >= BUSY_CPUS or any(state.other_processes for state in states)


def busy_cpus(case: Case) -> float:
    """CPUs that other processes used, in the window with most."""
    return max((state.other_cpus or 0 for _, _, state in _windows_of(case)), default=0.0)


def telemetry_table(case: Case) -> tb.Table | None:
    """A row for each window, a column for whatever the machine reported; None without windows."""
    windows = _windows_of(case)
    if not windows or case.telemetry is None:
        return None
    columns: list[tuple[str, tb.Read]] = [
        ("measured", lambda row: row[0]),
        ("s", lambda row: (row[1].ended_ns - row[1].started_ns) * _NS),
    ]

    def cell(row: Window, name: str, form: Callable[..., str]) -> tb.Number | None:
        value = getattr(row[2], name)
        return None if value is None else tb.Number(form(value))

    def limits(row: Window) -> tb.Text:
        """``power cap 62 %, 1,980 down to 1,410 MHz``."""
        state = row[2]
        parts = [f"{name} {share * 100:.0f} %" for name, share in state.limits.items()]
        if state.clock_moved and state.sm_clock_mhz:
            low, high = state.sm_clock_mhz
            parts.append(f"{high:,.0f} down to {low:,.0f} MHz")
        return tb.Text(", ".join(parts), "warning") if state.is_limited else tb.dim("nothing")

    for header, (name, form) in _COLUMNS.items():
        if any(getattr(state, name) is not None for _, _, state in windows):
            columns.append((header, partial(cell, name=name, form=form)))
    samples = case.telemetry.gpu_samples
    if samples is not None and samples.reasons is not None:
        columns.append(("clocks limited by", limits))
    note = f"{1e9 / case.telemetry.interval_ns:.0f} Hz"
    return tb.Table("Telemetry", columns, windows, note=note)


def judge_telemetry(case: Case) -> Iterator[tb.Finding]:
    """Windows whose clocks were limited or moved, that did not converge, or were not alone."""
    windows, found = _windows_of(case), defaultdict[str, list[str]](list)
    moved, open_ended, busy = list[str](), list[str](), list[str]()
    for name, window, state in windows:
        for limit, share in state.limits.items():
            found[limit].append(f"{name} ({share * 100:.0f} % of the time)")
        moved += [name] if state.clock_moved and not state.limits else []
        open_ended += [name] if window.converged is False else []
        cpus = state.other_cpus or 0
        busy += [f"{name} ({cpus:.1f})"] if cpus >= BUSY_CPUS else []
    for limit, names in found.items():
        say = tb.note if limit in _EXPECTED else tb.warning
        yield say(f"{limit} reduced clocks during {_few(names)}")
    if moved:
        yield tb.warning(f"the GPU's clock changed during {_few(moved)}")
    if open_ended:
        yield tb.warning(f"not converged to 0.5 % within the time: {_few(open_ended)}")
    if busy:
        yield tb.note(f"other processes used CPUs during {_few(busy)}")
    if others := max((state.other_processes or 0 for _, _, state in windows), default=0):
        yield tb.warning(f"{others} other processes computed on the GPU")
    reasons = defaultdict[str, list[str]](list)
    for name, reason in (case.telemetry.absent if case.telemetry else {}).items():
        reasons[reason].append(name)
    if reasons:
        missing = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        yield tb.note(f"not available on this machine: {missing}")


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
