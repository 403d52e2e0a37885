"""The table of a sweep: a row per case, swept settings left, key numbers right."""

from collections.abc import Sequence

from dsv4kv.record.quantities import (
    allocated_bytes,
    axis_names,
    gather_rate,
    latency_median,
    setting_text,
)
from dsv4kv.record.schema import Case
from dsv4kv.units import format_bytes
from dsv4kv.view.case import backend_note, graph_device_time
from dsv4kv.view.cells import measured
from dsv4kv.view.facts import tokens_per_second
from dsv4kv.view.table import ABSENT, Level, Mark, Table, names, numbers

_MARKS: dict[str, Level] = {
    "complete": "good",
    "incomplete": "warning",
    "skipped": "missing",
    "failed": "bad",
}
_LONG_STEP_NS = 1e8


def sweep_table(cases: Sequence[Case]) -> Table:
    """One row per case. The gather rate is that of all gather operations together, cold ones."""
    backends = dict.fromkeys(backend_note(case) for case in cases if case.totals)
    axes = axis_names(cases)
    on_gpu = any(graph_device_time(case) for case in cases)
    gathers = any(gather_rate(case) for case in cases)
    unit, scale = _step_unit(cases)
    return Table(
        "Sweep",
        [
            *numbers(*(name.replace("_", " ") for name in axes.values())),
            *numbers(f"step, median {unit}", *(["decode, GPU µs"] if on_gpu else []), "tokens/s"),
            *numbers("prepare, median µs", *(["gather GB/s"] if gathers else []), "allocated"),
            *numbers("peak blocks", minor=True),
            *names("state"),
        ],
        [
            (
                *(setting_text(case.axis.get(path, ABSENT)) for path in axes),
                measured(latency_median(case, "step"), scale),
                *([measured(graph_device_time(case), 1e-3)] if on_gpu else []),
                _tokens_per_second(case),
                measured(latency_median(case, "prepare"), 1e-3),
                *([measured(gather_rate(case))] if gathers else []),
                _allocated(case),
                _peak_blocks(case),
                Mark(_MARKS[case.status]),
            )
            for case in cases
        ],
        note="; ".join([*backends, "tokens in and out"]),
        keys=len(axes),
    )


def _step_unit(cases: Sequence[Case]) -> tuple[str, float]:
    """The unit of the column of steps, and how many a nanosecond is."""
    steps = [step.value for case in cases if (step := latency_median(case, "step"))]
    return ("ms", 1e-6) if max(steps, default=0) >= _LONG_STEP_NS else ("µs", 1e-3)


def _tokens_per_second(case: Case) -> str:
    rate = tokens_per_second(case.totals) if case.totals else None
    return ABSENT if rate is None else f"{rate:,.0f}"


def _allocated(case: Case) -> str:
    size = allocated_bytes(case)
    return ABSENT if size is None else format_bytes(size)


def _peak_blocks(case: Case) -> str:
    return f"{case.totals.peak_blocks:,}" if case.totals else ABSENT
