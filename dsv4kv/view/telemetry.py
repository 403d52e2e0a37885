"""Telemetry on a terminal: what the machine did while each row was measured."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from dsv4kv.runs.schema import Case
from dsv4kv.runs.telemetry import HeldUnits, MeasuredWindow, MemorySeries, Telemetry
from dsv4kv.runs.windows import WindowState, window_state
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import format_number
from dsv4kv.view.table import ABSENT, Finding, Spark, Table, Text, names, numbers, prose
from dsv4kv.view.table import Row as TableRow

Row = tuple[MeasuredWindow, WindowState]
Cell = Callable[[WindowState], str | None]

_EXPECTED = {"power cap"}  # at full load on parts that are rated by their power
_MOST_ROWS = 4
_NS_TO_S = 1e-9
_BUSY_CPUS = 0.5  # of others; a poll of ours is a thousandth
_COUNTED: Sequence[tuple[str, Literal["bad", "note"], str]] = (
    ("ecc_uncorrected", "bad", "memory errors of the GPU that were not corrected"),
    ("ecc_corrected", "note", "memory errors of the GPU that were corrected"),
    ("pcie_replays", "note", "packets that the PCIe link sent again"),
)
"""Counters that should not change, and what it means if they do."""


def _number(name: str, form: Callable[[float], str] = format_number) -> Cell:
    def cell(state: WindowState) -> str | None:
        value = getattr(state, name)
        return None if value is None else form(value)

    return cell


def _span(name: str) -> Cell:
    def cell(state: WindowState) -> str | None:
        ends = getattr(state, name)
        if ends is None:
            return None
        low, high = (f"{end:,.0f}" for end in ends)
        return low if low == high else f"{low}–{high}"

    return cell


_COLUMNS: dict[str, Cell] = {
    "SM MHz": _span("sm_clock_mhz"),
    "memory MHz": _span("memory_clock_mhz"),
    "W": _number("power_w"),
    "J": _number("energy_j"),
    "°C": _number("temperature_c", "{:.0f}".format),
    "DRAM %": _number("dram_percent"),
    "CPU MHz": _span("cpu_mhz"),
    "CPUs used by other processes": _number("other_cpus"),
}


def telemetry_table(case: Case) -> Table | None:
    """A row for each window, a column for whatever the machine reported; None without windows."""
    rows = _rows(case.telemetry)
    if case.telemetry is None or not rows:
        return None
    columns = _reported(rows)
    samples = case.telemetry.gpu_samples
    reports_limits = samples is not None and samples.reasons is not None
    return Table(
        "Telemetry",
        [
            *names("measured"),
            *numbers("s", *columns),
            *(prose("clocks held down by") if reports_limits else []),
        ],
        [
            (
                row_name(window),
                format_number((window.ended_ns - window.started_ns) * _NS_TO_S),
                *(column[index] or ABSENT for column in columns.values()),
                *([_limits_cell(state)] if reports_limits else []),
            )
            for index, (window, state) in enumerate(rows)
        ],
        note=f"{1e9 / case.telemetry.interval_ns:.0f} Hz",
    )


def row_name(window: MeasuredWindow) -> str:
    """``gather_topk csa cold``: as a row of the operations' table, or a part of the run."""
    return " ".join(filter(None, (window.name, window.layer_type, window.temperature)))


def limits_text(state: WindowState) -> str:
    """``power cap 62 %, 1,980 down to 1,410 MHz``; empty where clocks were free and steady."""
    parts = [f"{name} {share * 100:.0f} %" for name, share in state.limits.items()]
    if state.clock_moved and state.sm_clock_mhz:
        low, high = state.sm_clock_mhz
        parts.append(f"{high:,.0f} down to {low:,.0f} MHz")
    return ", ".join(parts)


def judge_telemetry(case: Case) -> list[Finding]:
    """Rows whose clocks were held down or moved, that did not converge, or were not alone."""
    rows = _rows(case.telemetry)
    return [
        *_judge_limits(rows),
        *_judge_convergence(rows),
        *_judge_company(rows),
        *_judge_counters(case.telemetry),
        *_judge_absence(case.telemetry),
    ]


def _rows(telemetry: Telemetry | None) -> list[Row]:
    if telemetry is None:
        return []
    return [(window, window_state(telemetry, window)) for window in telemetry.windows]


def _reported(rows: Sequence[Row]) -> dict[str, list[str | None]]:
    """Cells by header, without columns that nothing was reported for."""
    cells = {name: [cell(state) for _, state in rows] for name, cell in _COLUMNS.items()}
    return {name: column for name, column in cells.items() if any(column)}


def _limits_cell(state: WindowState) -> Text:
    return Text(limits_text(state), "warning") if state.is_limited else Text("nothing", "dim")


def _judge_limits(rows: Sequence[Row]) -> list[Finding]:
    limited: dict[str, list[str]] = defaultdict(list)
    for window, state in rows:
        for name, share in state.limits.items():
            limited[name].append(f"{row_name(window)} ({share * 100:.0f} % of the time)")
    found = [
        Finding(
            "note" if name in _EXPECTED else "warning",
            f"{name} held clocks down during {_few(names)}",
        )
        for name, names in limited.items()
    ]
    moved = [row_name(window) for window, state in rows if state.clock_moved and not state.limits]
    if moved:
        found.append(Finding("warning", f"the GPU's clock changed during {_few(moved)}"))
    return found


def _judge_convergence(rows: Sequence[Row]) -> list[Finding]:
    open_ended = [row_name(window) for window, _ in rows if window.converged is False]
    if not open_ended:
        return []
    return [Finding("warning", f"not known to 0.5 % when time was up: {_few(open_ended)}")]


def _judge_company(rows: Sequence[Row]) -> list[Finding]:
    """Others on the GPU or the CPUs."""
    found = []
    if others := max((state.other_processes or 0 for _, state in rows), default=0):
        found.append(Finding("warning", f"{others} other processes computed on the GPU"))
    busy = [
        f"{row_name(window)} ({state.other_cpus:.1f})"
        for window, state in rows
        if state.other_cpus is not None and state.other_cpus >= _BUSY_CPUS
    ]
    if busy:
        found.append(Finding("note", f"others kept CPUs busy during {_few(busy)}"))
    return found


def _judge_counters(telemetry: Telemetry | None) -> Iterator[Finding]:
    """What was counted during the run, and errors from before that were never corrected."""
    checks = telemetry.gpu_checks if telemetry else None
    for column, level, sentence in _COUNTED if checks else ():
        counts = [count for count in getattr(checks, column) or [] if count is not None]
        if counts and counts[-1] > counts[0]:
            yield Finding(level, f"{sentence} during the run: {counts[-1] - counts[0]:,}")
        elif counts and counts[0] and level == "bad":
            yield Finding("warning", f"{sentence} before this run began: {counts[0]:,}")


def _judge_absence(telemetry: Telemetry | None) -> list[Finding]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in telemetry.absent.items() if telemetry else ():
        by_reason[reason].append(name)
    if not by_reason:
        return []
    missing = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return [Finding("note", f"not available on this machine: {missing}")]


def _few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _MOST_ROWS
    shown = ", ".join(names[:_MOST_ROWS])
    return f"{shown} and {more} more" if more > 0 else shown


def pool_sizes(series: MemorySeries) -> dict[str, list[int]]:
    """Bytes held in the pools of each name at every moment, layer types together."""
    held = {each.name: each.held for each in series.units}
    names = dict.fromkeys(pool.name for pool in series.pools)
    unit_bytes: dict[str, dict[str, int]] = {name: {} for name in names}
    for pool in series.pools:
        sizes = unit_bytes[pool.name]
        sizes[pool.unit] = sizes.get(pool.unit, 0) + pool.unit_bytes
    return {
        name: [
            sum(held[unit][moment] * size for unit, size in sizes.items())
            for moment in range(len(series.at_ns))
        ]
        for name, sizes in unit_bytes.items()
    }


def stride_text(series: MemorySeries) -> str:
    """What a point stands for."""
    if series.stride_steps == 1:
        return "a point per step"
    return f"a point per {series.stride_steps:,} steps, the fullest of them"


def held_table(series: MemorySeries) -> Table:
    """A row for each kind of unit: how many were held, and what that is in bytes."""
    return Table(
        "Memory over time",
        [
            *names("held"),
            *numbers("of", "at first", "at most", "at last", "at most, bytes"),
            *names("over time", minor=True),
        ],
        [_row(each, series) for each in series.units],
        note=stride_text(series),
    )


def share_percent(each: HeldUnits, count: int) -> float:
    """So many of the units, of all there are."""
    return count / each.units * 100 if each.units else 0.0


def _row(each: HeldUnits, series: MemorySeries) -> TableRow:
    most = max(each.held, default=0)
    unit_bytes = sum(pool.unit_bytes for pool in series.pools if pool.unit == each.name)
    first, last = (f"{each.held[end]:,}" if each.held else ABSENT for end in (0, -1))
    return [
        each.name,
        f"{each.units:,}",
        first,
        f"{most:,} ({share_percent(each, most):.1f} %)",
        last,
        format_bytes(most * unit_bytes) if unit_bytes else ABSENT,
        Spark(each.held),
    ]
