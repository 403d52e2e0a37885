"""Two sides: their launches, whether they may be compared, and a verdict on all quantities."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dsv4kv.bench.compare import verdict as vd
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.runs.quantities import Measured, Quantity, axis_text, measured_in, ratio_of_calls
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.store import load_record
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class Side:
    """One side."""

    name: str
    records: tuple[RunRecord, ...]  # runs of it; every launch of every run counts


@dataclass(frozen=True)
class Launched:
    """A quantity as one launch measured it."""

    measured: Measured
    process: tuple[int, int]
    """Which record of the side and which launch of it: identifies a launch."""
    began_s: float  # when that launch began, in seconds
    pair: str = ""
    """Shared with the launch of the other side that it was interleaved with; empty where none
    did."""


def load_side(text: str) -> Side:
    """Read a side: a record, several separated by commas, or a folder of them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(
            f"{text!r} has a comma with no file on one side of it: give A1.json,A2.json."
        )
    paths = [path for part in parts for path in _expand(Path(part))]
    records = tuple(load_record(path) for path in paths)
    runs = [record.run_id for record in records]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise ConfigError(f"{text} has the run {twice} twice: name each run once.")
    return Side(text, records)


def list_launched(side: Side) -> dict[Quantity, list[Launched]]:
    """What the launches of a side measured, of cases that ran to their end."""
    found: dict[Quantity, list[Launched]] = {}
    for index, record in enumerate(side.records):
        for case in record.cases:
            if case.status == "complete":
                each = record.launches[case.launch] if record.launches else record
                began_s = datetime.fromisoformat(each.started_utc).timestamp()
                process, pair = (index, case.launch), _pair(record, case)
                for measured in measured_in(case):
                    launched = Launched(measured, process, began_s, pair)
                    found.setdefault(measured.quantity, []).append(launched)
    return found


def count_launches(side: Side) -> int:
    """Launches that left a case which ran to its end."""
    return sum(
        len({case.launch for case in record.cases if case.status == "complete"})
        for record in side.records
    )


def list_losses(side: Side) -> Iterator[str]:
    """A sentence for each launch and case of a side that cannot be compared."""
    for record in side.records:
        with_cases = {case.launch for case in record.cases}
        for launch in record.launches:
            if launch.status != "complete" and launch.launch not in with_cases:
                status = launch.status.replace("_", " ")
                yield f"{side.name}: launch {launch.launch} {status}: {launch.error or 'Ctrl-C'}"
        for case in record.cases:
            if case.status != "complete":
                where = f"{axis_text(case)}, " if case.axis else ""
                yield (
                    f"{side.name}: {where}launch {case.launch} {case.status}: "
                    f"{case.error or 'stopped before the end'}"
                )


def _expand(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.glob("*.json") if not each.name.startswith("."))
    if not found:
        raise RecordError(f"{path} holds no records: name a folder with .json files of bench.")
    return found


def _pair(record: RunRecord, case: Case) -> str:
    alternated = case.totals is not None and case.totals.steps_in_turns > 0
    return record.launches[case.launch].pair if record.launches and alternated else ""


# What dsv4kv is compared for, and what no run shares with the next.
_MEANT = ("versions.dsv4kv", "git_sha", "git_dirty", "load_1min")
_VARIABLES = "variables."  # not there means not set, and that is a difference

Kind = Literal["machine", "config", "unknown"]


@dataclass(frozen=True)
class Difference:
    """A field in which the sides differ."""

    kind: Kind
    """``machine`` (hardware and software), ``config``, or ``unknown`` for a field that only one of
    two versions of dsv4kv has; the last does not prevent a comparison."""
    field: str  # dotted path
    before: str  # values of the one side, as text
    after: str  # values of the other

    def __str__(self) -> str:
        return f"{self.kind}: {self.field}: {self.before} against {self.after}"


def list_differences(before: Side, after: Side) -> list[Difference]:
    """Everything that two sides must share and do not; a side must also agree with itself."""
    reads: dict[Kind, Any] = {"machine": _machine, "config": _settings}
    differences = list[Difference]()
    for kind, read in reads.items():
        sides = [_gather(read, side) for side in (before, after)]
        for field in dict.fromkeys([*sides[0], *sides[1]]):
            first, second = (side.get(field, []) for side in sides)
            known = bool(first and second) or field.startswith(_VARIABLES)
            if len(first) > 1 or first != second:
                shown = [" or ".join(values) or "not there" for values in (first, second)]
                differences.append(Difference(kind if known else "unknown", field, *shown))
    return differences


def _gather(read: Any, side: Side) -> dict[str, list[str]]:
    """Every value that the records of a side have in a field, each once."""
    found: dict[str, list[str]] = {}
    for record in side.records:
        for field, value in read(record):
            values = found.setdefault(field, [])
            if (text := "unknown" if value is None else str(value)) not in values:
                values.append(text)
    return found


def _machine(record: RunRecord) -> Iterator[tuple[str, Any]]:
    values = record.environment.model_dump(mode="json")
    values["gpu"] = values["gpu"] or {"name": "none"}
    for field, value in _flatten(values):
        if field not in _MEANT:
            yield field, value


def _settings(record: RunRecord) -> Iterator[tuple[str, Any]]:
    """Settings of every case, under the point of the sweep they belong to."""
    yield "trace_sha256", record.trace_sha256
    for case in record.cases:
        prefix = f"[{axis_text(case)}] " if case.axis else ""
        yield f"{prefix}ran on", case.device
        yield f"{prefix}backend_version", case.backend_version
        for field, value in _flatten(case.config):
            if field != "name":
                yield prefix + field, value


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


Ratios = dict[str, float]  # of every pair, by its name


def pair_up(before: Sequence[Launched], after: Sequence[Launched]) -> Ratios:
    """Ratio of the times, after to before, of each pair; empty without pairs."""
    firsts = {each.pair: each.measured for each in before if each.pair}
    return {
        each.pair: ratio_of_calls(firsts[each.pair], each.measured)
        for each in after
        if each.pair in firsts
    }


OTHER_WORK = "other work"
_SMALL = 0.005
"""Share of all time below which a quantity has no row: every row widens the intervals of all."""


@dataclass(frozen=True)
class Row:
    """One quantity on both sides."""

    quantity: Quantity
    before: vd.Launches  # median of every launch in ns
    after: vd.Launches
    judgement: vd.Judgement
    factors: tuple[float | None, float | None] = (None, None)
    """Error factors of a model's times, before and after; None where times were measured, or
    nothing is known of their error."""

    @property
    def other_work(self) -> bool:
        """Whether a call did other work on the one side than on the other."""
        return self.judgement.reason.startswith(OTHER_WORK)


@dataclass(frozen=True)
class Comparison:
    """Two sides and what may be said about them."""

    before: Side  # the side that is compared with
    after: Side  # the side that is judged
    floor: float  # the smallest change that counts
    rows: tuple[Row, ...]  # every quantity of both sides
    overall: vd.Judgement | None
    """The verdict on the geometric mean of all rows with the same work; None if there is none."""
    in_turns: bool
    """Whether steps of both sides were interleaved; then launches are judged in pairs."""
    virtual: bool  # whether all times are those of a model, and changes exact
    missing: tuple[str, ...]  # quantities that only one side has, and which one
    losses: tuple[str, ...]  # launches and cases that could not be used, a sentence each
    differences: tuple[Difference, ...]  # fields in which the sides differ
    intended: bool  # whether the sides were made to differ, as in A against B
    small: tuple[str, ...] = ()  # quantities of so little time that they are not judged
    only: tuple[str, ...] = ()  # operations that are compared; empty for all that was measured

    @property
    def forced(self) -> bool:
        """Whether the sides differ where they must not, and are compared anyway."""
        return not self.intended and any(each.kind != "unknown" for each in self.differences)

    def conclude(self) -> vd.Verdict:
        """One verdict: SLOWER as soon as a row is.

        UNCLEAR where the mean of all rows is, or where something is missing or has failed.
        """
        found = {row.judgement.verdict for row in self.rows}
        mean = self.overall.verdict if self.overall else vd.Verdict.UNCLEAR
        if vd.Verdict.SLOWER in (mean, *found):
            return vd.Verdict.SLOWER
        if mean is vd.Verdict.UNCLEAR or self.missing or _has_failed(self):
            return vd.Verdict.UNCLEAR
        return vd.Verdict.FASTER if vd.Verdict.FASTER in (mean, *found) else vd.Verdict.SAME


def compare(
    before: Side,
    after: Side,
    floor: float,
    differences: Sequence[Difference] = (),
    *,
    intended: bool = False,
    only: Sequence[str] = (),
) -> Comparison:
    """Judge every quantity that both sides have; ``differences`` are of ``list_differences``.

    ``only``: names of operations. Raises ``ConfigError`` where none of them is on both sides.
    """
    first, second = (_chosen(list_launched(side), only) for side in (before, after))
    both = [quantity for quantity in first if quantity in second]
    timed = [  # a clock that is too coarse gives 0, which has no ratio
        q for q in both if all(each.measured.median_ns > 0 for each in first[q] + second[q])
    ]
    small = _small(timed, first, second)
    shared = [q for q in timed if q not in small]
    if only and not shared:
        raise ConfigError(
            f"--only {','.join(only)}: not measured on both sides. Operations that gather need "
            "--set workload.step=gather; --only all compares whatever both sides have."
        )
    halves = 2 if len(shared) > 1 else 1  # half of the error rate is the mean's
    verdicts = halves * len(shared)
    pairs = {q: pair_up(first[q], second[q]) for q in shared}
    rows = tuple(_row(q, first[q], second[q], pairs[q], floor, verdicts) for q in shared)
    alike = {row.quantity: pairs[row.quantity] for row in rows if not row.other_work}
    return Comparison(
        before=before,
        after=after,
        floor=floor,
        rows=rows,
        overall=_judge_all(first, second, alike, floor, halves),
        in_turns=any(pairs.values()),
        virtual=bool(rows) and all(_is_virtual(first[q] + second[q]) for q in shared),
        missing=tuple(
            f"{quantity} is only in {side.name}"
            for side, own, other in ((before, first, second), (after, second, first))
            for quantity in own
            if quantity not in other
        ),
        losses=(
            *(loss for side in (before, after) for loss in list_losses(side)),
            *(f"{q} is too short for this clock: 0 ns" for q in both if q not in timed),
        ),
        differences=tuple(differences),
        intended=intended,
        small=tuple(map(str, small)),
        only=tuple(only),
    )


def brought_by(before: Side, after: Side) -> tuple[str, ...]:
    """Operations that two backends bring; empty where the backends are the same."""
    cases = [
        [case for record in side.records for case in record.cases] for side in (before, after)
    ]
    if {case.backend for case in cases[0]} == {case.backend for case in cases[1]}:
        return ()
    return tuple(dict.fromkeys(name for side in cases for case in side for name in case.foreign))


def _chosen(launched: dict[Quantity, list[Launched]], only: Sequence[str]) -> Any:
    if not only:
        return launched
    names = {name for each in only for name in (each, f"indexer_{each}")}
    return {quantity: each for quantity, each in launched.items() if quantity.name in names}


def _small(
    quantities: Sequence[Quantity], *sides: dict[Quantity, list[Launched]]
) -> list[Quantity]:
    """Measured quantities whose time is next to nothing on both sides."""
    spent = [
        {q: sum(sum(each.measured.samples_ns) for each in side[q]) for q in quantities}
        for side in sides
    ]
    return [
        q
        for q in quantities
        if not _is_virtual(sides[0][q])
        and all(times[q] < _SMALL * sum(times.values()) for times in spent)
    ]


def _row(
    quantity: Quantity,
    before: Sequence[Launched],
    after: Sequence[Launched],
    pairs: Ratios,
    floor: float,
    verdicts: int,
) -> Row:
    sides = _launches(before), _launches(after)
    factors = [[e.measured.factor for e in side if e.measured.factor] for side in (before, after)]
    virtual = _is_virtual([*before, *after])
    judgement = _judge(sides, list(pairs.values()), floor, verdicts, virtual=virtual)
    if reason := _other_work(before, after, floor):
        judgement = replace(judgement, verdict=vd.Verdict.UNCLEAR, reason=reason)
    # the least sure of a side counts
    least_sure = max(factors[0], default=None), max(factors[1], default=None)
    return Row(quantity, *sides, judgement, least_sure)


def _judge(
    sides: tuple[vd.Launches, vd.Launches],
    ratios: Sequence[float],
    floor: float,
    verdicts: int,
    *,
    virtual: bool,
) -> vd.Judgement:
    if virtual:
        before, after = (float(np.median(side.values)) for side in sides)
        return vd.judge_exact(before, after, floor)
    return vd.judge_pairs(ratios, floor, verdicts) if ratios else vd.judge(*sides, floor, verdicts)


def _launches(launched: Sequence[Launched]) -> vd.Launches:
    return vd.Launches(
        [each.measured.median_ns for each in launched], [each.began_s for each in launched]
    )


def _is_virtual(launched: Sequence[Launched]) -> bool:
    return all(each.measured.virtual for each in launched)


def _other_work(before: Sequence[Launched], after: Sequence[Launched], floor: float) -> str:
    """How the bytes of a call differ by more than the floor; empty where they do not."""
    sizes = [
        sum(each.measured.bytes_per_call for each in launched) / len(launched)
        for launched in (before, after)
    ]
    if abs(sizes[1] - sizes[0]) <= floor * sizes[0]:
        return ""
    return f"{OTHER_WORK}: {' against '.join(map(format_bytes, sizes))} a call"


def _judge_all(
    before: dict[Quantity, list[Launched]],
    after: dict[Quantity, list[Launched]],
    pairs: dict[Quantity, Ratios],
    floor: float,
    verdicts: int,
) -> vd.Judgement | None:
    """The verdict on the geometric mean of rows; None without a launch that has them all."""
    ratios = list[float]()
    if any(pairs.values()):
        whole = set.intersection(*map(set, pairs.values()))  # pairs that lack no row
        logs = [[np.log(row[pair]) for row in pairs.values()] for pair in sorted(whole)]
        ratios = [float(np.exp(np.mean(each))) for each in logs]
        if not ratios:
            return None
    sides = _mean_of_rows(before, list(pairs)), _mean_of_rows(after, list(pairs))
    if not ratios and not all(side.values for side in sides):
        return None
    virtual = all(_is_virtual(side[quantity]) for side in (before, after) for quantity in pairs)
    return _judge(sides, ratios, floor, verdicts, virtual=virtual)


def _mean_of_rows(
    measured: dict[Quantity, list[Launched]], quantities: Sequence[Quantity]
) -> vd.Launches:
    """Geometric mean of the rows' medians, launch by launch; launches that lack a row are out."""
    # rows of one launch rise and fall together: the interval is over launches, as for any row
    logs: dict[tuple[int, int], list[float]] = {}
    began_s: dict[tuple[int, int], float] = {}
    for quantity in quantities:
        for each in measured[quantity]:
            logs.setdefault(each.process, []).append(math.log(each.measured.median_ns))
            began_s[each.process] = each.began_s
    whole = {key: values for key, values in logs.items() if len(values) == len(quantities)}
    means = [math.exp(sum(values) / len(values)) for values in whole.values()]
    return vd.Launches(means, [began_s[key] for key in whole])


def _has_failed(comparison: Comparison) -> bool:
    """Whether a launch or case failed, or no launch of a side ended a case that is not skipped."""
    records = (*comparison.before.records, *comparison.after.records)
    statuses = {str(each.status) for record in records for each in record.cases}
    statuses |= {each.status for record in records for each in record.launches}
    if statuses - {"complete", "incomplete", "skipped"}:
        return True
    sides = [
        [case for record in side.records for case in record.cases]
        for side in (comparison.before, comparison.after)
    ]
    tried = {axis_text(case) for side in sides for case in side if case.status != "skipped"}
    ended = [{axis_text(case) for case in side if case.status == "complete"} for side in sides]
    return not tried or any(tried - each for each in ended)
