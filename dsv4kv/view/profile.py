"""Profiles: the KV cache's share of the time, kernel by kernel.

Rates are decimal: 1 GB/s is 10^9 B/s.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dsv4kv.profile.table import shorten
from dsv4kv.profile.trace import INPUTS
from dsv4kv.runs import parts
from dsv4kv.runs.quantities import Yardstick, yardsticks
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.statistics import summarize
from dsv4kv.units import counted, format_duration
from dsv4kv.view import table as tb
from dsv4kv.view.bench import bench_page, is_known, name_run
from dsv4kv.view.facts import header, layers_text
from dsv4kv.view.outcomes import format_with_unit

_MAX_LINES, _MIN_KERNELS = 9, 3  # of classes and kernels in an answer
_IDLE = 0.05  # of a step: less is not worth a clause
_GEMMS, _SENDS = "GEMMs", "communication"
_NAMED = {
    _GEMMS: re.compile(r"gemm|nvjet|cutlass|matmul|addmm|fused_moe|::(b?mm|linear)$", re.I),
    _SENDS: re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|deep_ep", re.I),
}
"""Classes of kernels that no rule classifies, by their names."""
_CLASSES = (*(name for name in parts.CATEGORIES if name != parts.OTHER), *_NAMED, parts.OTHER)
_MAX_AMPLIFICATION = 1.10
"""Bytes moved over useful bytes that a gather or an insert may have."""
ON_GPU = {
    "GPU, first begin to last end": "span_ns",
    "GPU busy": "busy_ns",
    "GPU idle in between": "gap_ns",
    "host, in calls that launch": "launch_ns",
    "host, whole step": "host_ns",
}
ON_CPU = {
    "torch operations": "busy_ns",
    "Python around them": "launch_ns",
    "outside any operation": "gap_ns",
    "synthetic inputs": "inputs_ns",
    "whole step": "host_ns",
}
_OF_THE_SPAN = ("span_ns", "busy_ns", "gap_ns")
_CACHE_LIKE = re.compile(
    r"cache|kv|mla|gather|compress|swa|window|page|block_table|slot|indexer|topk(?!gating)", re.I
)


def record_page(record: RunRecord) -> tb.Page:
    """A record of ``profile``: its profile, then everything else that was measured."""
    case = next(case for case in record.cases if case.profile and case.profile.table)
    assert case.profile
    assert case.profile.table
    own = any(case.cache for case in record.cases)
    name, table = f"Profile of {record.config_source}", case.profile.table
    devices = "".join(f", {device}" for device in dict.fromkeys(table.devices))
    title = f"{name_run(record)}, profiled" if own else f"{name}{devices}, {table.tool}"
    layers = layers_text(record.cases)
    page = profile_page(case.profile, next(iter(yardsticks(case)), None), title, layers)
    rows = header(record).rows
    facts = {name: rows[name] for name in ("run", "repeat") if name in rows}
    sections = bench_page(record).sections if own else [tb.Section("Run", [tb.Facts(facts)])]
    return tb.Page(page.title, page.answer, [*page.sections, *sections])


def profile_page(
    profile: parts.Profile, yardstick: Yardstick | None, name: str = "Profile", layers: str = ""
) -> tb.Page:
    """A profile with a kernel table; rates are compared with the baseline's.

    ``layers`` names the part of a model that was profiled: ``3 of 43 layers``.
    """
    table = profile.table
    assert table is not None
    kernels: list[tb.Part] = []
    if any((row.useful_bytes, row.dram_bytes) != (None, None) for row in table.operations):
        kernels.append(_operations_table(table.operations, yardstick).noted(layers))
    kernels.append(_kernels_table(table, None, yardstick).noted(layers))
    names = [(title_of(row), row.name) for row in table.kernels]
    if longer := [pair for pair in names if pair[0] != pair[1]]:
        kernels.append(tb.Table("Names", ["kernel", "full name"], longer))
    sections = [
        tb.Section("Steps", list(_where(profile, table, layers))),
        tb.Section("Kernels", kernels),
    ]
    return tb.Page(name, list(_answer(profile, table, yardstick, layers)), sections)


def _answer(
    profile: parts.Profile, table: parts.KernelTable, yardstick: Yardstick | None, layers: str
) -> Iterator[tb.Part]:
    yield from map(tb.warning, table.warnings[:3])
    # all but synthetic inputs, which are the toolkit's: a server's range may have that name
    own = bool(profile.step_requests)
    rows = [row for row in table.kernels if not (own and row.phase == INPUTS)]
    spent = _spent(rows)
    idle = 0.0  # share of the steps on the GPU, from first begin to last end
    if table.steps and not _is_on_cpu(table) and (span := sum(table.steps.span_ns)):
        idle = sum(table.steps.gap_ns) / span
    step, doubt = _step_clause(table, idle)
    if spent.total() and _engines(rows):
        total = spent.total() / 100
        cache = sum(spent[name] for name in parts.CACHE_CATEGORIES) / total
        words = f"Work on the KV cache: {cache:.1f} % of busy time"
        words += ", synthetic inputs excluded" if len(rows) < len(table.kernels) else ""
        shown = {name: name for name in ("attention", *_NAMED)} | {parts.OTHER: "not classified"}
        for name, word in shown.items():
            words += f", {word} {spent[name] / total:.1f} %" if spent[name] else ""
        yield tb.strong("; ".join(filter(None, (words, step, layers))) + ".")
    else:
        sentence = "no kernel is classified, so the KV cache's cost is unknown"
        yield tb.warning(f"{sentence}: add patterns with profile --rules FILE")
        if step:
            yield tb.strong(f"{step[0].upper()}{step[1:]}.")
    if doubt:
        yield tb.warning(doubt)
    if not table.steps and not own and table.tool != "ncu":
        yield tb.warning("no step is found: shares are of the whole capture")
    yield from _doubts(table)
    yield from _next(table, rows, idle)
    if table.kernels:
        classes = _classes_table(table)
        most = max(_MIN_KERNELS, _MAX_LINES - len(classes.rows))
        yield from ("", replace(classes, note=_describe(profile, table)))
        yield from ("", _kernels_table(table, most, yardstick).noted(layers))


def _spent(rows: Sequence[parts.KernelRow]) -> Counter[str]:
    spent = Counter[str]()
    for row in rows:
        spent[class_of(row)] += row.total_ns
    return spent


def _step_clause(table: parts.KernelTable, idle: float) -> tuple[str, str]:
    """A step's time and idle share for the headline; the time as a doubt if it is not known."""
    step, doubt = "", ""
    if table.steps:
        on_cpu = _is_on_cpu(table)
        time = summarize(table.steps.host_ns if on_cpu else table.steps.span_ns).estimate
        place = "on the host" if on_cpu else "on the GPU"
        step = f"a step takes {format_with_unit(time, 'ns')} {place}"
        if not is_known(time):
            count = counted(table.num_steps, "step")
            step, doubt = "", f"{step}: {count}, too few for an interval"
    if idle >= _IDLE:
        share = _percent(idle, 1)
        step = f"{step}, {share} of it idle" if step else f"the GPU idles {share} of the step"
    return step, doubt


def _next(
    table: parts.KernelTable, own: Sequence[parts.KernelRow], idle: float
) -> Iterator[tb.Finding]:
    """Where to look next: the cache's largest class, else the largest but GEMMs, or idle time."""
    rows = [row for row in own if row.category in parts.CACHE_CATEGORIES]
    rows = rows or [row for row in own if class_of(row) not in ("attention", _GEMMS)]
    spent = Counter[str]()
    for row in rows:
        spent[row.category] += row.total_ns
    name, time_ns = max(spent.items(), key=lambda pair: pair[1], default=("", 0))
    if table.kernels and table.steps and idle >= _IDLE and sum(table.steps.gap_ns) > time_ns:
        before = max(table.kernels, key=lambda row: (row.gap_ns or 0) * row.calls)
        kernel = f", longest before {_cut(title_of(before))}" if before.gap_ns else ""
        yield tb.note(f"look next at idle time: {_percent(idle, 1)} of the step{kernel}")
    elif time_ns:
        longest = next(row for row in rows if row.category == name)  # rows are by time
        share = _percent(time_ns, sum(row.total_ns for row in table.kernels))
        kernel = f"{share} of busy, longest {_cut(title_of(longest))}"
        yield tb.note(f"look next at {name}: {kernel}")


def _doubts(table: parts.KernelTable) -> Iterator[tb.Finding]:
    unknown = [
        title_of(row)
        for row in table.kernels
        if row.kind == "kernel"
        and row.category == parts.OTHER
        and _CACHE_LIKE.search(title_of(row))
    ]
    if unknown:
        shown = ", ".join(dict.fromkeys(unknown[:3])) + (", …" if len(unknown) > 3 else "")
        advice = "; add patterns with profile --rules FILE" if _engines(table.kernels) else ""
        yield tb.warning(f"not classified, but named like cache kernels: {shown}{advice}")
    audited = [row for row in table.operations if amplification(row) is not None]
    for row in filter(is_amplified, audited):
        yield tb.bad(f"{row.name} moves {amplification(row):.2f} times what it must")
    if audited and not any(map(is_amplified, audited)):
        yield tb.good("no gather and no insert moves over 1.10 times what it must")


def _where(profile: parts.Profile, table: parts.KernelTable, layers: str) -> Iterator[tb.Part]:
    yield from map(tb.warning, table.warnings)
    yield from map(tb.note, [_describe(profile, table), *table.notes])
    if table.outside_calls:
        inside = sum(row.total_ns for row in table.kernels)
        share = _percent(table.outside_ns, inside + table.outside_ns or 1)
        pieces, time = counted(table.outside_calls, "piece"), format_duration(table.outside_ns)
        text = f"excluded: {pieces} of work outside every step, {time}, {share} of the capture's"
        yield tb.note(text)
    elif table.num_steps and not _is_on_cpu(table):
        yield tb.note("all work of the capture is inside steps")
    if table.steps:
        yield _steps_table(table, table.steps).noted(layers)
        if _is_on_cpu(table):
            outside, whole = sum(table.steps.gap_ns), sum(table.steps.host_ns) or 1
            yield tb.note(
                f"operations add up to {_percent(whole - outside, whole)} of the steps, and "
                f"{_percent(outside, whole)} is outside any of them"
            )


def _kernels_table(
    table: parts.KernelTable, most: int | None, yardstick: Yardstick | None
) -> tb.Table:
    """Kernels by their time, the longest ``most`` of them, all for None."""
    total = sum(row.total_ns for row in table.kernels) or 1
    columns: list[tb.Column] = [
        ("kernel", lambda row: _cut(title_of(row)) if most else title_of(row)),
        ("class", class_of),
        ("% of busy", lambda row: tb.percent(row.total_ns / total)),
        ("median µs", lambda row: tb.us(row.median_ns)),
        *_rate_columns(yardstick),
        ("calls", lambda row: row.calls),
        ("total µs", lambda row: tb.us(row.total_ns)),
        ("min µs", lambda row: tb.us(row.min_ns)),
        ("idle before µs", lambda row: tb.us(row.gap_ns)),
        ("phase", lambda row: row.phase or None),
    ]
    ops = any(row.kind == "op" for row in table.kernels)
    note = "time that nothing inside accounts for" if ops else ""
    found = tb.Table("Kernels", columns[:6] if most else columns, table.kernels, note=note)
    return found.first(most)


def _cut(name: str) -> str:
    """Both ends of a long name: kernels of one family differ in either."""
    return name if len(name) <= 44 else f"{name[:21]}…{name[-22:]}"


def _rate_columns(yardstick: Yardstick | None) -> list[tb.Column]:
    best, name = (yardstick.rate, yardstick.name) if yardstick else (None, "copy")

    def rate(row: Any) -> float | None:
        known = row.useful_bytes and row.total_ns
        return row.useful_bytes / row.total_ns if known else None

    def share(row: Any) -> tb.Number | None:
        found = rate(row)
        return tb.percent(found / best.value) if found and best else None

    return [("GB/s", rate), (f"% of {name}", share)]


def _classes_table(table: parts.KernelTable) -> tb.Table:
    spent, calls = _spent(table.kernels), Counter[str]()
    for row in table.kernels:
        calls[class_of(row)] += row.calls
    steps, whole = table.num_steps, spent.total() or 1
    engines = {name: _engines([r for r in table.kernels if class_of(r) == name]) for name in spent}
    columns: tb.Columns = [
        ("class", lambda name: name),
        ("% of busy", lambda name: tb.percent(spent[name] / whole)),
        ("of busy", lambda name: tb.bar(spent[name] / whole)),
        ("µs a step", lambda name: tb.us(spent[name] / steps if steps else None)),
        ("calls", lambda name: calls[name]),
        ("known by", lambda name: engines[name]),
    ]
    rows = sorted((name for name in _CLASSES if calls[name]), key=lambda name: -spent[name])
    return tb.Table("Kernel classes", columns, rows)


def _operations_table(
    operations: Sequence[parts.OperationRow], yardstick: Yardstick | None
) -> tb.Table:
    def moved(row: parts.OperationRow) -> tb.Number | None:
        ratio = amplification(row)
        tone: tb.Tone = "bad" if is_amplified(row) else "good"
        return tb.Number(f"{ratio:.2f}", tone=tone) if ratio else None

    columns: tb.Columns = [
        ("operation", lambda row: row.name),
        ("class", lambda row: row.category),
        ("calls", lambda row: row.calls),
        ("total µs", lambda row: tb.us(row.total_ns)),
        ("useful", lambda row: tb.size(row.useful_bytes)),
        *_rate_columns(yardstick),
        ("in DRAM", lambda row: tb.size(row.dram_bytes)),
        ("moved / useful", moved),
    ]
    note = "useful bytes by the byte model, all calls"
    return tb.Table("Operations", columns, operations, note=note)


def amplification(row: parts.OperationRow) -> float | None:
    """Bytes in DRAM over useful bytes; None where one of them is not known."""
    return row.dram_bytes / row.useful_bytes if row.dram_bytes and row.useful_bytes else None


def is_amplified(row: parts.OperationRow) -> bool:
    """Whether a gather or an insert moves clearly more than it must."""
    ratio = amplification(row)
    return row.category in ("gather", "insert") and (ratio or 0.0) > _MAX_AMPLIFICATION


def class_of(row: parts.KernelRow) -> str:
    names = _NAMED if row.category == parts.OTHER else {}
    return next((name for name in names if names[name].search(title_of(row))), row.category)


def title_of(row: parts.KernelRow) -> str:
    """Short name of a kernel; operations and copies keep theirs."""
    return shorten(row.name) if row.kind == "kernel" else row.name


def _engines(rows: Sequence[parts.KernelRow]) -> str:
    return ", ".join(dict.fromkeys(row.engine for row in rows if row.engine))


def _steps_table(table: parts.KernelTable, steps: parts.StepTimes) -> tb.Table:
    """Where the time of a step went: medians over steps, and over GPUs where there are more.

    Medians do not add up; shares do, which are of all steps together.
    """
    gpus = f" on {len(set(steps.device)):,} GPUs" if len(steps.host_ns) > table.num_steps else ""

    def share(row: tuple[str, str]) -> tb.Number | None:
        times = getattr(steps, row[1])
        whole = sum(steps.span_ns if row[1] in _OF_THE_SPAN else steps.host_ns)
        return tb.percent(sum(times) / whole) if whole else None

    columns: tb.Columns = [
        ("part", lambda row: row[0]),
        ("median µs", lambda row: tb.us(summarize(getattr(steps, row[1])).estimate)),
        ("min µs", lambda row: tb.us(min(getattr(steps, row[1])))),
        ("max µs", lambda row: tb.us(max(getattr(steps, row[1])))),
        ("% of the step", share),
    ]
    whole = "" if _is_on_cpu(table) else "; host's parts are of the step on the host"
    rows = list((ON_CPU if _is_on_cpu(table) else ON_GPU).items())
    return tb.Table("Step", columns, rows, note=f"{counted(table.num_steps, 'step')}{gpus}{whole}")


def _describe(profile: parts.Profile, table: parts.KernelTable) -> str:
    tool = f"{table.tool} ({table.tool_version})" if table.tool_version else table.tool
    devices = Counter(table.devices).items()
    gpus = "".join(f", {n} × {name}" if n > 1 else f", {name}" for name, n in devices)
    steps = ""
    if counts := profile.step_requests:
        few, many = min(counts), max(counts)
        fewest = "" if few == many else f"{few:,} to "
        steps = f"; {counted(len(counts), 'step')} of {fewest}{counted(many, 'request')}"
    return f"profiled with {tool}{gpus}: {profile.why}{steps}"


def _is_on_cpu(table: parts.KernelTable) -> bool:
    return any(row.kind in ("op", "range") for row in table.kernels)


def _percent(part: float, total: float) -> str:
    return f"{part / total * 100:.1f} %"
