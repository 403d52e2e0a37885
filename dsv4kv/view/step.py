"""Where a decode step's bytes and time go, by kind of work, and how close it comes to a roof."""

from collections.abc import Iterator, Sequence

from dsv4kv.measure.statistics import estimate_rate
from dsv4kv.runs.quantities import (
    StepShare,
    axis_names,
    datasheet_tflops,
    setting_text,
    step_shares,
    yardsticks,
)
from dsv4kv.runs.schema import Case, GpuFacts, Operation
from dsv4kv.units import format_bytes, format_count, format_duration
from dsv4kv.view.cells import format_number
from dsv4kv.view.table import ABSENT, Bar, Row, Table, Text, names, numbers

_PERCENT = 100.0


def step_table(cases: Sequence[Case]) -> Table | None:
    """A row for each setting and kind; None where no case knows."""
    rows = [row for case in cases for row in _case_rows(case, axis_names(cases))]
    if not rows:
        return None
    return Table(
        "Where a decode step goes",
        [
            *numbers(*(name.replace("_", " ") for name in axis_names(cases).values())),
            *names("work"),
            *numbers("bytes a step", "% of bytes"),
            *names("of bytes", minor=True),
            *numbers("time a step", "% of time"),
            *names("of time", minor=True),
        ],
        rows,
        note="all requests and layers held; useful bytes by the byte model",
        keys=len(axis_names(cases)) + 1,
    )


def _case_rows(case: Case, axes: dict[str, str]) -> Iterator[Row]:
    setting = [_setting(path, case.axis.get(path, ABSENT)) for path in axes]
    shares = step_shares(case)
    for share, moved, spent in zip(shares, *_percentages(shares), strict=True):
        yield [
            *setting,
            share.kind,
            *((format_bytes(share.bytes), f"{moved:.1f}") if share.bytes else (ABSENT, ABSENT)),
            Bar(moved / _PERCENT),
            format_duration(share.ns),
            f"{spent:.1f}",
            Bar(spent / _PERCENT),
        ]


def _setting(path: str, value: object) -> str:
    """A setting as one writes it: contexts as ``128K``."""
    if path == "workload.context" and isinstance(value, int):
        return format_count(value)
    return setting_text(value)


def _settings(case: Case) -> str:
    return ", ".join(_setting(path, value) for path, value in case.axis.items())


def _percentages(shares: Sequence[StepShare]) -> tuple[list[float], list[float]]:
    """Of all bytes and of all time."""
    size = sum(share.bytes for share in shares) or 1
    time = sum(share.ns for share in shares) or 1
    return (
        [share.bytes / size * _PERCENT for share in shares],
        [share.ns / time * _PERCENT for share in shares],
    )


def step_stacks(cases: Sequence[Case]) -> list[tuple[str, dict[str, float]]]:
    """Per cent by kind: a row for the bytes of each setting's step, and one for its time."""
    rows = []
    for case in cases:
        if shares := step_shares(case):
            at = _settings(case)
            for what, sizes in zip(("bytes", "time"), _percentages(shares), strict=True):
                parts = {s.kind: size for s, size in zip(shares, sizes, strict=True) if size}
                rows.append((f"{at} {what}".strip(), parts))
    return rows


def report_step(cases: Sequence[Case]) -> Iterator[Text]:
    """A line for each case: what takes most of a step's bytes, and of its time."""
    for case in cases:
        if shares := step_shares(case):
            moved, spent = _percentages(shares)
            at = _settings(case)
            where = f"Decode step at {at}" if at else "Decode step"
            parts = f"{_list(shares, moved)} of its bytes; {_list(shares, spent)} of its time"
            yield Text(f"{where}: {parts}.", "strong")


def _list(shares: Sequence[StepShare], percentages: Sequence[float]) -> str:
    """``scores 70 %, attention 29 %``: the largest first, from half a per cent on."""
    ranked = sorted(zip(percentages, shares, strict=True), key=lambda each: -each[0])
    return ", ".join(f"{share.kind} {size:.0f} %" for size, share in ranked if size >= 0.5)


def roofs_table(case: Case, gpu: GpuFacts | None) -> Table | None:
    """Operations with matrix products: what memory and tensor cores would allow, and what was."""
    known = yardsticks(case)
    memory = known[0].rate if known else None
    rows = [
        _roof_row(case, each, memory.value if memory else None, gpu)
        for each in case.operations
        if each.flops and sum(each.samples_ns) and each.temperature != "hot"
    ]
    if not rows:
        return None
    return Table(
        "Rooflines",
        [
            *names("operation", "layers"),
            *numbers("FLOP/B", "GFLOP/s", "memory allows", "tensor cores allow"),
            *names("bound by"),
            *numbers("% of the roof"),
        ],
        rows,
        note="memory: FLOP/B × this run's copy; tensor cores: the datasheet's dense rate",
        keys=2,
    )


def _roof_row(
    case: Case, operation: Operation, memory_gbps: float | None, gpu: GpuFacts | None
) -> Row:
    intensity = sum(operation.flops) / sum(operation.bytes)
    reached = estimate_rate(operation.flops, operation.samples_ns)
    fp8 = operation.name == "index_scores"
    on_gpu = gpu if case.device == "cuda" else None
    tensor = datasheet_tflops(on_gpu, fp8=fp8) if on_gpu else None
    sides = {"memory": intensity * memory_gbps if memory_gbps else None}
    sides["tensor cores"] = tensor * 1e3 if tensor else None
    allowed = {name: side for name, side in sides.items() if side}
    bound = min(allowed, key=lambda name: allowed[name]) if allowed else ABSENT
    rate = reached.value if reached else 0.0
    return [
        operation.name,
        operation.layer_type,
        format_number(intensity),
        format_number(rate),
        *(format_number(side) if side else ABSENT for side in sides.values()),
        bound if len(allowed) > 1 else ABSENT,
        f"{rate / allowed[bound] * _PERCENT:.1f}" if allowed else ABSENT,
    ]
