"""A profile on a terminal: what spoils it, where a step's time went, and the tables."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from dsv4kv.measure.profilers.classify import CACHE_CATEGORIES
from dsv4kv.measure.profilers.ranges import INPUTS
from dsv4kv.measure.statistics import summarize
from dsv4kv.report.cells import ABSENT, add_estimates, format_number, new_table
from dsv4kv.report.findings import Finding
from dsv4kv.report.kernels import (
    amplification,
    classes_table,
    engines,
    is_amplified,
    kernels_table,
    launches_table,
    operations_table,
    titles,
)
from dsv4kv.report.profile_record import KernelRow, KernelTable, MemoryAudit, Profile, StepTimes
from dsv4kv.report.yardstick import Yardstick
from dsv4kv.units import counted, format_bytes, format_duration

MOST_ROWS = 15
_NS_TO_US = 1e-3
_ON_GPU = {
    "GPU, first begin to last end": "span_ns",
    "GPU busy": "busy_ns",
    "GPU idle in between": "gap_ns",
    "host, in calls that launch": "launch_ns",
    "host, whole step": "host_ns",
}
_ON_CPU = {
    "torch operations": "busy_ns",
    "Python around them": "launch_ns",
    "outside any operation": "gap_ns",
    "data in the model's place": "inputs_ns",
    "whole step": "host_ns",
}
_OF_THE_SPAN = ("span_ns", "busy_ns", "gap_ns")
"""Parts of the time between a step's first and last work; a CPU's span is all of its step."""


def tell_profile(
    profile: Profile, yardstick: Yardstick | None, *, full: bool = False
) -> Iterator[RenderableType]:
    """The parts of a profile; with ``full`` every kernel, and how each was launched."""
    if profile.memory:
        yield memory_table(profile.memory)
        yield ""
    table = profile.table
    if table is None:
        return
    yield from (Finding("warning", warning) for warning in table.warnings)
    yield Finding("note", _describe(profile, table))
    yield from (Finding("note", note) for note in table.notes)
    if table.outside_calls or (table.num_steps and not _on_cpu(table)):
        yield Finding("note", _outside(table))
    yield ""
    if table.steps:
        yield steps_table(table.steps, table.num_steps, on_cpu=_on_cpu(table))
        if _on_cpu(table):
            yield Finding("note", _added_up(table.steps))
        yield ""
    yield from _tell_kernels(table, yardstick, full=full)
    yield from _judge(table)


def _tell_kernels(
    table: KernelTable, yardstick: Yardstick | None, *, full: bool
) -> Iterator[RenderableType]:
    if not table.kernels:
        return
    yield classes_table(table)
    yield ""
    if any((row.useful_bytes, row.dram_bytes) != (None, None) for row in table.operations):
        yield operations_table(table.operations, yardstick)
        yield ""
    yield kernels_table(table, None if full else MOST_ROWS, yardstick)
    left = 0 if full else len(table.kernels) - MOST_ROWS
    if left > 0:
        yield Finding("note", f"and {left:,} more: --full shows all, and how each was launched")
    launches = launches_table(table.kernels) if full else None
    if launches is not None:
        yield ""
        yield launches
    if full:
        yield from _tell_names(table)
    yield ""


def _tell_names(table: KernelTable) -> Iterator[RenderableType]:
    """Full names of kernels, where they are longer than those in the tables."""
    named = [
        (title, row.name)
        for title, row in zip(titles(table.kernels), table.kernels, strict=True)
        if title != row.name
    ]
    if not named:
        return
    view = new_table("Names")
    view.add_column("kernel", overflow="fold")
    view.add_column("full name", overflow="fold")
    for title, name in named:
        view.add_row(title, name)
    yield ""
    yield view


def steps_table(steps: StepTimes, count: int, *, on_cpu: bool) -> Table:
    """Where the time of a step went: medians over steps, and over GPUs where there are more.

    Medians do not add up; shares do, which are of all steps together.
    """
    labels = _ON_CPU if on_cpu else _ON_GPU
    columns = [getattr(steps, name) for name in labels.values()]
    gpus = f" on {len(set(steps.device)):,} GPUs" if len(steps.host_ns) > count else ""
    view = new_table("A step", f"{count:,} of them{gpus}, µs")
    view.add_column("", no_wrap=True)
    medians = [summarize(column).estimate for column in columns]
    cells = add_estimates(view, "median", list(medians), _NS_TO_US)
    view.add_column("min", justify="right", no_wrap=True)
    view.add_column("max", justify="right", no_wrap=True)
    view.add_column("% of all", justify="right", no_wrap=True)
    for (label, name), cell, column in zip(labels.items(), cells, columns, strict=True):
        ends = [format_number(end * _NS_TO_US) for end in (min(column), max(column))]
        whole = sum(steps.span_ns if name in _OF_THE_SPAN else steps.host_ns)
        view.add_row(label, cell, *ends, f"{sum(column) / whole * 100:.1f}" if whole else ABSENT)
    return view


def _added_up(steps: StepTimes) -> str:
    """``operations add up to 99.6 % of the steps``, those of the CPU."""
    outside, whole = sum(steps.gap_ns), sum(steps.host_ns) or 1
    told = f"operations add up to {_share(whole - outside, whole)} of the steps"
    return f"{told}, and {_share(outside, whole)} is outside any of them"


def memory_table(audit: MemoryAudit) -> Table:
    """Memory around the building of the pools, as planned and as others count it."""
    before, after = audit.marks
    view = new_table("Memory of the pools", f"planned {format_bytes(audit.planned_bytes)}")
    view.add_column("counted by", no_wrap=True)
    for header in ("before", "after", "more", "more than\nplanned"):
        view.add_column(header, justify="right", no_wrap=True)
    rows: list[tuple[str, int | None, int | None]] = [
        ("sizes of the tensors", 0, audit.pool_bytes),
        ("torch, tensors", before.allocated_bytes, after.allocated_bytes),
        ("torch, reserved", before.reserved_bytes, after.reserved_bytes),
        ("NVML, whole GPU", before.device_bytes, after.device_bytes),
        ("host, resident", before.resident_bytes, after.resident_bytes),
    ]
    for label, first, last in rows:
        if first is None or last is None:
            view.add_row(label, ABSENT, ABSENT, ABSENT, ABSENT)
        else:
            more, gap = last - first, last - first - audit.planned_bytes
            sizes = [format_bytes(size) for size in (first, last, more)]
            view.add_row(label, *sizes, format_bytes(gap))
    return view


def _describe(profile: Profile, table: KernelTable) -> str:
    tool = f"{table.tool} ({table.tool_version})" if table.tool_version else table.tool
    devices = Counter(table.devices).items()
    gpus = "".join(f", {n} × {name}" if n > 1 else f", {name}" for name, n in devices)
    return f"profiled with {tool}{gpus}: {profile.why}{_requests(profile.step_requests)}"


def _requests(counts: list[int]) -> str:
    """``; 10 steps of 8 requests``."""
    if not counts:
        return ""
    few, many = min(counts), max(counts)
    fewest = "" if few == many else f"{few:,} to "
    return f"; {counted(len(counts), 'step')} of {fewest}{counted(many, 'request')}"


def _outside(table: KernelTable) -> str:
    """What share of the capture's work no step has."""
    if not table.outside_calls:
        return "all work of the capture lies in steps"
    inside = sum(row.total_ns for row in table.kernels)
    share = _share(table.outside_ns, inside + table.outside_ns or 1)
    pieces = f"{counted(table.outside_calls, 'piece')} of work"
    time = format_duration(table.outside_ns)
    return f"left out: {pieces} outside every step, {time}, {share} of the capture's"


def _on_cpu(table: KernelTable) -> bool:
    return any(row.kind in ("op", "range") for row in table.kernels)


def _judge(table: KernelTable) -> Iterator[Finding]:
    """What share the cache has, and which operations move more than they must."""
    rows = [row for row in table.kernels if row.phase != INPUTS]  # no server has those
    if total := sum(row.total_ns for row in rows):
        yield _share_of_cache(rows, total, engines(table))
    audited = [row for row in table.operations if amplification(row) is not None]
    for row in filter(is_amplified, audited):
        yield Finding("bad", f"{row.name} moves {amplification(row):.2f} times what it must")
    if audited and not any(map(is_amplified, audited)):
        yield Finding("good", "no gather and no insert moves over 1.10 times what it must")


def _share_of_cache(rows: Sequence[KernelRow], total_ns: int, known: str) -> Finding:
    """``work on the KV cache: 0.4 % of the time (insert 0.4 %), known by vLLM``."""
    if not known:
        told = "no rule knows any of the kernels, so what the KV cache costs cannot be told"
        return Finding("warning", f"{told}: rules are in configs/profile/, a pattern a line")
    spent = Counter[str]()
    for row in rows:
        spent[row.category] += row.total_ns
    cache = sum(spent[name] for name in CACHE_CATEGORIES)
    parts = ", ".join(
        f"{name} {_share(spent[name], total_ns)}" for name in CACHE_CATEGORIES if spent[name]
    )
    told = f"work on the KV cache: {_share(cache, total_ns)} of the time"
    told += f" ({parts})" if parts else ""
    told += f", attention {_share(spent['attention'], total_ns)}" if spent["attention"] else ""
    return Finding("good" if cache else "note", f"{told}, known by {known}")


def _share(part: float, total: float) -> str:
    return f"{part / total * 100:.1f} %"
