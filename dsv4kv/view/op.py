"""What ``dsv4kv bench op`` found: cases that are right, and a row per backend and shape."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsv4kv.runs import quantities as q
from dsv4kv.runs.schema import Case, GpuFacts, Operation
from dsv4kv.runs.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.view.bench import checked, is_known, roof
from dsv4kv.view.facts import cases_equal
from dsv4kv.view.quantity import format_number, format_quantity, quantity
from dsv4kv.view.table import Finding, Page, Part, Read, Table, Text
from dsv4kv.view.telemetry import is_busy


class _Row(NamedTuple):
    case: Case
    operation: Operation
    ours: Operation | None  # our own operation at the same shape; None where this is it

    @property
    def time(self) -> Estimate:
        return summarize(self.operation.samples_ns).estimate

    @property
    def rate(self) -> Estimate | None:
        return estimate_rate(self.operation.bytes, self.operation.samples_ns)

    @property
    def speed(self) -> Estimate | None:
        """How many times as fast as ours."""
        ours = self.ours
        return divide(summarize(ours.samples_ns).estimate, self.time) if ours else None

    @property
    def copy(self) -> Estimate | None:
        known = q.yardsticks(self.case)
        return known[0].rate if known else None

    @property
    def copy_share(self) -> Estimate | None:
        return divide(self.rate, self.copy) if self.rate and self.copy else None


def _rows(timed: Sequence[Sequence[Case]]) -> list[_Row]:
    rows = []
    for cases in timed:
        own = cases[-1]
        for case in cases:
            rows += [
                _Row(case, each, ours if case is not own else None)
                for each, ours in zip(case.operations, own.operations, strict=True)
            ]
    return rows


def op_page(
    name: str,
    backend: str,
    cases: int,
    timed: Sequence[Sequence[Case]],
    gpu: GpuFacts | None = None,
) -> Page:
    """Cases in sight, then the sentence of one row, then all rows."""
    rows = _rows(timed)
    if not rows:
        return Page(name, [Finding("warning", f"{name}: nothing was timed: raise --seconds.")])
    busy = any(is_busy(each.case) for each in rows)
    compared = sorted((row for row in rows if row.speed), key=_speed)
    answer: list[Part] = (
        [_verdict(name, backend, compared, timed[0][-1].backend, busy=busy)] if compared else []
    )
    answer.append(cases_equal(name, backend, cases))
    if busy:
        answer.append(Finding("warning", "other processes were busy: times are marked !"))
    copy = q.yardsticks((compared or rows)[0].case)[0]
    axes = {"batch": "batch", "top-k": "topk", "context": "context"}
    varied = [
        head for head, axis in axes.items() if len({row.case.axis[axis] for row in rows}) > 1
    ]
    shape = rows[0].case.axis
    columns: list[tuple[str, Read]] = [
        ("backend", lambda row: row.case.backend),
        ("layers", lambda row: row.operation.layer_type),
        *((head, lambda row, axis=axes[head]: quantity(row.case.axis[axis])) for head in varied),
        ("median µs", lambda row: checked(row.time, 1e-3, busy=busy)),
        *([("speedup", lambda row: checked(row.speed, busy=busy))] if compared else []),
        ("GB/s", lambda row: checked(row.rate, busy=busy)),
        (f"% of {copy.name}", lambda row: checked(row.copy_share, 100, busy=busy)),
    ]
    if gpu and any(row.operation.flops for row in rows):
        columns += [
            ("bound by", lambda row: roof(row.operation, row.copy, gpu)[0]),
            ("% of roof", lambda row: roof(row.operation, row.copy, gpu)[1]),
        ]
    if not compared:
        del columns[0]
    same = [f"{head} {quantity(shape[axes[head]]).value}" for head in axes if head not in varied]
    note = "; ".join(
        [*([", ".join(same)] if same else []), f"{copy.name} {format_quantity(copy.rate)} GB/s"]
    )
    return Page(name, [*answer, "", Table(name, columns, rows, note=note, keys=2, rest="--json")])


def _speed(row: _Row) -> float:
    return row.speed.value if row.speed else 0.0


def _verdict(name: str, backend: str, compared: Sequence[_Row], own: str, *, busy: bool) -> Part:
    """How much faster or slower than our own, from the slowest row to the fastest."""
    speeds = [speed for row in (compared[0], compared[-1]) if (speed := row.speed)]
    ratios = [divide(Estimate(1.0, 0.0), each) if each.value < 1 else each for each in speeds]
    known = [is_known(each) and _low(each) > 1 for each in ratios]
    exact = len(compared) == 1 and all(known) and not busy
    texts = [format_quantity(each) if exact else format_number(each.value) for each in ratios]
    words = ["slower" if each.value < 1 else "faster" for each in speeds]
    if texts[0] == texts[1] and words[0] == words[1]:
        said = f"{texts[0]} times {words[0]}"
    elif words[0] == words[1]:
        low, high = sorted(zip((each.value for each in ratios), texts, strict=True))
        said = f"{low[1]} to {high[1]} times {words[0]}"
    else:
        said = f"{texts[0]} times {words[0]} to {texts[1]} times {words[1]}"
    sentence = f"{name} of {backend} is {said} than {own}"
    if busy or not all(known):
        return Finding("warning", sentence + ", its interval unknown" * (not all(known)))
    return Text(f"{sentence}.", "strong")


def _low(ratio: Estimate) -> float:
    return ratio.value - (ratio.arms[0] if ratio.arms else ratio.half_width or 0.0)


def op_values(name: str, cases: int, timed: Sequence[Sequence[Case]]) -> dict[str, Any]:
    """The same for programs, with every sample."""
    rows = [
        {"backend": row.case.backend, **row.case.axis, **row.operation.model_dump(mode="json")}
        | {"copy_gbps": row.copy.value if row.copy else None}
        | {"speedup": row.speed.value if row.speed else None}
        for row in _rows(timed)
    ]
    return {"operation": name, "cases_equal": cases, "rows": rows}
