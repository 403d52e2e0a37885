"""A profile on a terminal: what spoils it, where a step's time went, and the tables.

The tables of a profile: where the time went, kernel by kernel and operation by operation. Rates
are decimal: 1 GB/s is 10^9 B/s, or one byte per nanosecond.

A step's timeline is a picture (SVG) or a Chrome trace, which Perfetto opens.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.files import write_named
from dsv4kv.measure.profilers.classify import CACHE_CATEGORIES, CATEGORIES, shorten
from dsv4kv.measure.profilers.ranges import INPUTS
from dsv4kv.measure.statistics import summarize
from dsv4kv.runs.profile import (
    KernelRow,
    KernelTable,
    MemoryAudit,
    OperationRow,
    Profile,
    StepTimes,
    Timeline,
)
from dsv4kv.runs.quantities import Yardstick
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.cells import format_number, measured
from dsv4kv.view.table import (
    ABSENT,
    Finding,
    Part,
    Row,
    Table,
    Text,
    names,
    numbers,
    prose,
)


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write a picture (``.svg``) or a Chrome trace (``.json``).

    Raises:
        ConfigError: The name ends in neither, or the file cannot be written.
    """
    refuse_other_names([path])
    text = draw_timeline(timeline) if path.suffix == ".svg" else chrome_trace(timeline)
    write_named(path, text, "--timeline")


def refuse_other_names(paths: Iterable[Path]) -> None:
    """Refuse names that no timeline can have.

    Raises:
        ConfigError: One is neither a picture nor a Chrome trace, or its folder does not exist.
    """
    for path in paths:
        if path.suffix not in (".svg", ".json"):
            raise ConfigError(f"{path}: a timeline is a picture, .svg, or a Chrome trace, .json.")
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}.")


def draw_timeline(timeline: Timeline) -> str:
    """The step as an SVG document."""
    from dsv4kv.view.charts.figure import standalone_svg
    from dsv4kv.view.charts.time import timeline_chart

    return standalone_svg(timeline_chart(timeline, "One step"))


def chrome_trace(timeline: Timeline) -> str:
    """The timeline as JSON of Chrome's trace events: times in µs, a thread for each lane."""
    lanes = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": lane}}
        for tid, lane in enumerate(timeline.lanes, start=1)
    ]
    pieces = [
        {
            "ph": "X",
            "pid": 1,
            "tid": lane + 1,
            "ts": start / 1000,
            "dur": duration / 1000,
            "name": shorten(timeline.names[name]),
            "cat": timeline.categories[name],
            "args": {"full name": timeline.names[name]},
        }
        for name, lane, start, duration in zip(
            timeline.name, timeline.lane, timeline.start_ns, timeline.duration_ns, strict=True
        )
    ]
    document = {"displayTimeUnit": "ns", "traceEvents": [*lanes, *pieces]}
    return json.dumps(document, separators=(",", ":")) + "\n"


NS_TO_US = 1e-3
_MOST_AMPLIFICATION = 1.10
"""Bytes moved over useful bytes that a gather or an insert may have."""


def kernels_table(table: KernelTable, most: int | None, yardstick: Yardstick | None) -> Table:
    """Kernels by their time, the longest ``most`` of them, all for None."""
    shown = table.kernels[:most]
    total = sum(row.total_ns for row in table.kernels) or 1
    known = any(row.useful_bytes is not None for row in shown)
    gaps = any(row.gap_ns is not None for row in shown)
    rates = ["GB/s", f"% of {yardstick.name if yardstick else 'copy'}"]
    return Table(
        "Kernels",
        [
            *names("kernel", "does"),
            *numbers("calls", "total µs", "% of all", "median µs"),
            *numbers("p95 µs", "min µs", *(["idle before"] if gaps else []), minor=True),
            *numbers(*(rates if known else [])),
        ],
        [
            (
                title,
                row.category,
                f"{row.calls:,}",
                format_us(row.total_ns),
                f"{row.total_ns / total * 100:.1f}",
                *(format_us(row.median_ns), format_us(row.p95_ns), format_us(row.min_ns)),
                *([format_us(row.gap_ns)] if gaps else []),
                *(_rate(row.useful_bytes, row.total_ns, yardstick) if known else []),
            )
            for title, row in zip(titles(shown), shown, strict=True)
        ],
        note=_title_note(table),
    )


def classes_table(table: KernelTable) -> Table:
    """Time by what kernels do to the cache."""
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for row in table.kernels:
        spent[row.category] += row.total_ns
        calls[row.category] += row.calls
    steps, whole = table.num_steps, spent.total() or 1
    return Table(
        "What they do",
        [
            *names("does"),
            *numbers("calls", "total µs", *(["µs a step"] if steps else []), "% of all"),
        ],
        [
            (
                category,
                f"{calls[category]:,}",
                format_us(spent[category]),
                *([format_us(spent[category] / steps)] if steps else []),
                f"{spent[category] / whole * 100:.1f}",
            )
            for category in CATEGORIES
            if calls[category]
        ],
    )


def profiled_operations_table(
    operations: Sequence[OperationRow], yardstick: Yardstick | None
) -> Table:
    """The toolkit's operations: useful bytes, rate, and bytes in DRAM where they were counted."""
    counted = any(row.dram_bytes is not None for row in operations)
    return Table(
        "Operations",
        [
            *names("operation", "does"),
            *numbers("calls", "total µs", "useful", "GB/s"),
            *numbers(f"% of {yardstick.name if yardstick else 'copy'}"),
            *numbers(*(["in DRAM", "moved / useful"] if counted else [])),
        ],
        [
            (
                *(row.name, row.category, f"{row.calls:,}", format_us(row.total_ns)),
                _size(row.useful_bytes),
                *_rate(row.useful_bytes, row.total_ns, yardstick),
                *((_size(row.dram_bytes), _amplification(row)) if counted else ()),
            )
            for row in operations
        ],
        note="useful bytes are those of the byte model, all calls",
    )


def launches_table(kernels: Sequence[KernelRow]) -> Table | None:
    """How kernels were launched; None where the profile does not say."""
    known = [row for row in kernels if row.grid or row.registers is not None]
    if not known:
        return None
    return Table(
        "Launches",
        [
            *names("kernel", "phase"),
            *numbers("place in graph", "grid", "block", "registers", "shared", "different"),
        ],
        [
            (
                title,
                row.phase or ABSENT,
                ABSENT if row.node is None else str(row.node),
                _product(row.grid),
                _product(row.block),
                ABSENT if row.registers is None else str(row.registers),
                _size(row.shared_bytes),
                f"{row.shapes:,}",
            )
            for title, row in zip(titles(known), known, strict=True)
        ],
        note="the most frequent of each kernel",
    )


def amplification(row: OperationRow) -> float | None:
    """Bytes in DRAM over useful bytes; None where one of them is not known."""
    if row.dram_bytes is None or not row.useful_bytes:
        return None
    return row.dram_bytes / row.useful_bytes


def is_amplified(row: OperationRow) -> bool:
    """Whether a gather or an insert moves clearly more than it must."""
    ratio = amplification(row)
    return row.category in ("gather", "insert") and (ratio or 0.0) > _MOST_AMPLIFICATION


def titles(rows: Sequence[KernelRow]) -> list[str]:
    """Short names; equal ones of one class are numbered."""
    short = [(title_of(row), row.category) for row in rows]
    count, seen = Counter(short), Counter[tuple[str, str]]()
    found = []
    for name in short:
        seen[name] += 1
        found.append(f"{name[0]} ·{seen[name]}" if count[name] > 1 else name[0])
    return found


def title_of(row: KernelRow) -> str:
    """Short name of a kernel; operations and copies keep theirs."""
    return shorten(row.name) if row.kind == "kernel" else row.name


def engines(table: KernelTable) -> str:
    """Whose kernels were known; empty where none was."""
    return ", ".join(dict.fromkeys(row.engine for row in table.kernels if row.engine))


def _title_note(table: KernelTable) -> str:
    if any(row.kind == "op" for row in table.kernels):
        return "time that nothing inside accounts for"
    return ""


def _size(size: int | None) -> str:
    return ABSENT if size is None else format_bytes(size)


def format_us(nanoseconds: float | None) -> str:
    """A time in µs, without its unit."""
    return ABSENT if nanoseconds is None else format_number(nanoseconds * NS_TO_US)


def _rate(size: int | None, time_ns: int, yardstick: Yardstick | None) -> list[str]:
    """GB/s, and what share of the yardstick's that is."""
    if size is None or not time_ns:
        return [ABSENT, ABSENT]
    best = yardstick.rate if yardstick else None
    share = f"{size / time_ns / best.value * 100:.1f}" if best else ABSENT
    return [format_number(size / time_ns), share]


def _amplification(row: OperationRow) -> Text:
    ratio = amplification(row)
    if ratio is None:
        return Text(ABSENT)
    return Text(f"{ratio:.2f}", "bad" if is_amplified(row) else "good")


def _product(sizes: Sequence[int] | None) -> str:
    """``128×4``: trailing ones are left out."""
    if sizes is None:
        return ABSENT
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "×".join(f"{size:,}" for size in kept)


MOST_ROWS = 15
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
    "synthetic inputs": "inputs_ns",
    "whole step": "host_ns",
}
_OF_THE_SPAN = ("span_ns", "busy_ns", "gap_ns")
"""Parts of the time between a step's first and last work; a CPU's span is all of its step."""


def report_profile(
    profile: Profile, yardstick: Yardstick | None, *, full: bool = False, layers: str = ""
) -> Iterator[Part]:
    """The parts of a profile; with ``full`` every kernel, and how each was launched.

    ``layers`` says of which part of a model its times are.
    """
    for part in _report_profile(profile, yardstick, full=full):
        yield part.noted(layers) if isinstance(part, Table) else part


def _report_profile(
    profile: Profile, yardstick: Yardstick | None, *, full: bool
) -> Iterator[Part]:
    if profile.memory:
        yield memory_table(profile.memory)
        yield ""
    table = profile.table
    if table is None:
        return
    yield from describe_profile(profile, table)
    yield ""
    if table.steps:
        yield steps_table(table, table.steps)
        if is_on_cpu(table):
            yield Finding("note", _added_up(table.steps))
        yield ""
    yield from _report_kernels(table, yardstick, full=full)
    yield from judge_profile(table)


def describe_profile(profile: Profile, table: KernelTable) -> Iterator[Finding]:
    """What was profiled with what, and what spoils it."""
    yield from (Finding("warning", warning) for warning in table.warnings)
    yield Finding("note", _describe(profile, table))
    yield from (Finding("note", note) for note in table.notes)
    if table.outside_calls or (table.num_steps and not is_on_cpu(table)):
        yield Finding("note", _outside(table))


def _report_kernels(
    table: KernelTable, yardstick: Yardstick | None, *, full: bool
) -> Iterator[Part]:
    if not table.kernels:
        return
    yield classes_table(table)
    yield ""
    if any((row.useful_bytes, row.dram_bytes) != (None, None) for row in table.operations):
        yield profiled_operations_table(table.operations, yardstick)
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
        yield from _report_names(table)
    yield ""


def _report_names(table: KernelTable) -> Iterator[Part]:
    """Full names of kernels, where they are longer than those in the tables."""
    named = [
        (title, row.name)
        for title, row in zip(titles(table.kernels), table.kernels, strict=True)
        if title != row.name
    ]
    if not named:
        return
    yield ""
    yield Table("Names", [*names("kernel"), *prose("full name")], named)


def steps_table(table: KernelTable, steps: StepTimes) -> Table:
    """Where the time of a step went: medians over steps, and over GPUs where there are more.

    Medians do not add up; shares do, which are of all steps together.
    """
    count = table.num_steps
    gpus = f" on {len(set(steps.device)):,} GPUs" if len(steps.host_ns) > count else ""
    labels = _ON_CPU if is_on_cpu(table) else _ON_GPU
    return Table(
        "A step",
        [*names("part"), *numbers("median", "min", "max", "% of all")],
        [_step_row(steps, label, name) for label, name in labels.items()],
        note=f"{count:,} of them{gpus}, µs",
    )


def _step_row(steps: StepTimes, label: str, name: str) -> Row:
    times = getattr(steps, name)
    whole = sum(steps.span_ns if name in _OF_THE_SPAN else steps.host_ns)
    return [
        label,
        measured(summarize(times).estimate, NS_TO_US),
        *(format_number(end * NS_TO_US) for end in (min(times), max(times))),
        f"{sum(times) / whole * 100:.1f}" if whole else ABSENT,
    ]


def _added_up(steps: StepTimes) -> str:
    """``operations add up to 99.6 % of the steps``, those of the CPU."""
    outside, whole = sum(steps.gap_ns), sum(steps.host_ns) or 1
    text = f"operations add up to {_share(whole - outside, whole)} of the steps"
    return f"{text}, and {_share(outside, whole)} is outside any of them"


def memory_table(audit: MemoryAudit) -> Table:
    """Memory around the building of the pools, as planned and as others count it."""
    before, after = audit.marks
    known: dict[str, tuple[int | None, int | None]] = {
        "sizes of the tensors": (0, audit.pool_bytes),
        "torch, tensors": (before.allocated_bytes, after.allocated_bytes),
        "torch, reserved": (before.reserved_bytes, after.reserved_bytes),
        "NVML, whole GPU": (before.device_bytes, after.device_bytes),
        "host, resident": (before.resident_bytes, after.resident_bytes),
    }
    rows = []
    for label, (first, last) in known.items():
        sizes = [ABSENT] * 4
        if first is not None and last is not None:
            more = last - first
            sizes = [format_bytes(n) for n in (first, last, more, more - audit.planned_bytes)]
        rows.append((label, *sizes))
    return Table(
        "Memory of the pools",
        [*names("counted by"), *numbers("before", "after", "more", "more than planned")],
        rows,
        note=f"planned {format_bytes(audit.planned_bytes)}",
    )


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
        return "all work of the capture is inside steps"
    inside = sum(row.total_ns for row in table.kernels)
    share = _share(table.outside_ns, inside + table.outside_ns or 1)
    pieces = f"{counted(table.outside_calls, 'piece')} of work"
    time = format_duration(table.outside_ns)
    return f"left out: {pieces} outside every step, {time}, {share} of the capture's"


def is_on_cpu(table: KernelTable) -> bool:
    """Whether it is one of torch's operations and ranges, without a GPU's work."""
    return any(row.kind in ("op", "range") for row in table.kernels)


def judge_profile(table: KernelTable) -> Iterator[Finding]:
    """What share the cache has, and which operations move more than they must."""
    if any(row.total_ns for row in _own_rows(table)):
        yield _share_of_cache(table)
    audited = [row for row in table.operations if amplification(row) is not None]
    for row in filter(is_amplified, audited):
        yield Finding("bad", f"{row.name} moves {amplification(row):.2f} times what it must")
    if audited and not any(map(is_amplified, audited)):
        yield Finding("good", "no gather and no insert moves over 1.10 times what it must")


def _own_rows(table: KernelTable) -> list[KernelRow]:
    """Kernels without those that make synthetic inputs, which no server has."""
    return [row for row in table.kernels if row.phase != INPUTS]


def shares(table: KernelTable) -> dict[str, float]:
    """Per cent of the time by what kernels do; empty where no rule knows any of them."""
    spent = Counter[str]()
    for row in _own_rows(table):
        spent[row.category] += row.total_ns
    total = spent.total() if engines(table) else 0
    return {name: spent[name] / total * 100 for name in CATEGORIES if spent[name]} if total else {}


def time_of(table: KernelTable) -> str:
    """What shares are of: ``time``, ``time without synthetic inputs``."""
    left_out = len(_own_rows(table)) < len(table.kernels)
    return "time without synthetic inputs" if left_out else "time"


def cache_share(table: KernelTable) -> tuple[float, str]:
    """Per cent of the time that is work on the KV cache, and its parts in words."""
    found = shares(table)
    parts = {name: found[name] for name in CACHE_CATEGORIES if found.get(name)}
    return sum(parts.values()), ", ".join(f"{name} {part:.1f} %" for name, part in parts.items())


def _share_of_cache(table: KernelTable) -> Finding:
    """``work on the KV cache: 0.4 % of the time (insert 0.4 %), known by vLLM``."""
    if not (known := engines(table)):
        text = "no rule knows any of the kernels, so what the KV cache costs is not known"
        return Finding("warning", f"{text}: rules are in configs/profile/, a pattern a line")
    cache, parts = cache_share(table)
    text = f"work on the KV cache: {cache:.1f} % of the {time_of(table)}"
    text += f" ({parts})" if parts else ""
    if attention := shares(table).get("attention"):
        text += f", attention {attention:.1f} %"
    return Finding("good" if cache else "note", f"{text}, known by {known}")


def _share(part: float, total: float) -> str:
    return f"{part / total * 100:.1f} %"
