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

    @property
    def cases(self) -> list[Case]:
        return [case for record in self.records for case in record.cases]


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


By = dict[Quantity, list[Launched]]  # what the launches of a side measured


def load_side(text: str) -> Side:
    """Read a side: a record, several separated by commas, or a folder of them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(
            f"{text!r} has a comma with no file on one side of it: give A1.json,A2.json."
        )
    paths = list[Path]()
    for path in map(Path, parts):
        found = [path]
        if path.is_dir():
            found = sorted(each for each in path.glob("*.json") if each.name[0] != ".")
        if not found:
            raise RecordError(f"{path} holds no records: name a folder with .json files of bench.")
        paths += found
    records = tuple(load_record(path) for path in paths)
    runs = [record.run_id for record in records]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise ConfigError(f"{text} has the run {twice} twice: name each run once.")
    return Side(text, records)


def list_launched(side: Side, only: Sequence[str] = ()) -> By:
    """What the launches of a side measured of operations, in cases that ran to their end."""
    names = {name for each in only for name in (each, f"indexer_{each}")}
    found: By = {}
    for index, record in enumerate(side.records):
        for case in record.cases:
            if case.status != "complete":
                continue
            launch = record.launches[case.launch] if record.launches else None
            began_s = datetime.fromisoformat((launch or record).started_utc).timestamp()
            alternated = case.totals is not None and case.totals.steps_in_turns > 0
            pair = launch.pair if launch and alternated else ""
            for measured in measured_in(case):
                if not only or measured.quantity.name in names:
                    launched = Launched(measured, (index, case.launch), began_s, pair)
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
    sides = [_read_fields(side) for side in (before, after)]
    differences = list[Difference]()
    for kind, field in sorted({**sides[0], **sides[1]}, key=lambda each: each[0] != "machine"):
        first, second = (side.get((kind, field), []) for side in sides)
        known = bool(first and second) or field.startswith(_VARIABLES)
        if len(first) > 1 or first != second:
            shown = [" or ".join(values) or "not there" for values in (first, second)]
            differences.append(Difference(kind if known else "unknown", field, *shown))
    return differences


def _read_fields(side: Side) -> dict[tuple[Kind, str], list[str]]:
    """Every value that the records of a side have in a field, each once, as text.

    Settings are of every case, under the point of the sweep that it belongs to.
    """
    read = list[tuple[Kind, str, Any]]()
    for record in side.records:
        values = record.environment.model_dump(mode="json")
        values["gpu"] = values["gpu"] or {"name": "none"}
        read += [("machine", f, value) for f, value in _flatten(values) if f not in _MEANT]
        read.append(("config", "trace_sha256", record.trace_sha256))
        for case in record.cases:
            settings = {"ran on": case.device, "backend_version": case.backend_version}
            settings |= {name: value for name, value in case.config.items() if name != "name"}
            prefix = f"[{axis_text(case)}] " if case.axis else ""
            read += [("config", f, value) for f, value in _flatten(settings, prefix)]
    found: dict[tuple[Kind, str], list[str]] = {}
    for kind, field, value in read:
        texts = found.setdefault((kind, field), [])
        if (text := "unknown" if value is None else str(value)) not in texts:
            texts.append(text)
    return found


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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
        if mean is vd.Verdict.UNCLEAR or self.missing or self._has_failed():
            return vd.Verdict.UNCLEAR
        return vd.Verdict.FASTER if vd.Verdict.FASTER in (mean, *found) else vd.Verdict.SAME

    def _has_failed(self) -> bool:
        """Whether one failed, or no launch of a side ended a case that is not skipped."""
        sides = self.before, self.after
        statuses = {str(case.status) for side in sides for case in side.cases}
        statuses |= {e.status for side in sides for r in side.records for e in r.launches}
        if statuses - {"complete", "incomplete", "skipped"}:
            return True
        tried = {axis_text(c) for side in sides for c in side.cases if c.status != "skipped"}
        ended = [{axis_text(c) for c in side.cases if c.status == "complete"} for side in sides]
        return not tried or any(tried - each for each in ended)


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
    first, second = (list_launched(side, only) for side in (before, after))
    both = {q: (first[q], second[q]) for q in first if q in second}
    timed = {  # a clock that is too coarse gives 0, which has no ratio
        q: (a, b) for q, (a, b) in both.items() if all(e.measured.median_ns > 0 for e in [*a, *b])
    }
    small = _small(timed)
    shared = {q: pair for q, pair in timed.items() if q not in small}
    if only and not shared:
        raise ConfigError(
            f"--only {','.join(only)}: not measured on both sides. Operations that gather need "
            "--set workload.step=gather; --only all compares whatever both sides have."
        )
    halves = 2 if len(shared) > 1 else 1  # half of the error rate is the mean's
    verdicts = halves * len(shared)
    rows = tuple(_row(quantity, *pair, floor, verdicts) for quantity, pair in shared.items())
    alike = [shared[row.quantity] for row in rows if not row.other_work]
    return Comparison(
        before=before,
        after=after,
        floor=floor,
        rows=rows,
        overall=_judge_all(alike, floor, halves),
        in_turns=any(_ratios(*pair) for pair in shared.values()),
        virtual=bool(rows) and all(map(_is_virtual, shared.values())),
        missing=tuple(
            f"{quantity} is only in {side.name}"
            for side, own in ((before, first), (after, second))
            for quantity in own
            if quantity not in both
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
    if {case.backend for case in before.cases} == {case.backend for case in after.cases}:
        return ()
    cases = [*before.cases, *after.cases]
    return tuple(dict.fromkeys(name for case in cases for name in case.foreign))


Sides = tuple[list[Launched], list[Launched]]
"""A quantity before and after."""


def _small(timed: dict[Quantity, Sides]) -> list[Quantity]:
    """Measured quantities whose time is next to nothing on both sides."""
    spent = [
        {q: sum(sum(each.measured.samples_ns) for each in pair[side]) for q, pair in timed.items()}
        for side in range(2)
    ]
    return [
        q
        for q, pair in timed.items()
        if not _is_virtual(pair)
        and all(times[q] < _SMALL * sum(times.values()) for times in spent)
    ]


def _is_virtual(sides: Sides) -> bool:
    return all(each.measured.virtual for side in sides for each in side)


def _ratios(before: Sequence[Launched], after: Sequence[Launched]) -> dict[str, float]:
    """Ratio of the times, after to before, of each pair by its name; empty without pairs."""
    firsts = {each.pair: each.measured for each in before if each.pair}
    return {
        each.pair: ratio_of_calls(firsts[each.pair], each.measured)
        for each in after
        if each.pair in firsts
    }


def _row(
    quantity: Quantity, before: list[Launched], after: list[Launched], floor: float, verdicts: int
) -> Row:
    launches = _launches(before), _launches(after)
    ratios = list(_ratios(before, after).values())
    judgement = _judge(launches, ratios, floor, verdicts, virtual=_is_virtual((before, after)))
    size, new_size = _bytes_per_call(before), _bytes_per_call(after)
    if abs(new_size - size) > floor * size:
        reason = f"{OTHER_WORK}: {format_bytes(size)} against {format_bytes(new_size)} a call"
        judgement = replace(judgement, verdict=vd.Verdict.UNCLEAR, reason=reason)
    return Row(quantity, *launches, judgement, (_least_sure(before), _least_sure(after)))


def _launches(side: Sequence[Launched]) -> vd.Launches:
    return vd.Launches([each.measured.median_ns for each in side], [each.began_s for each in side])


def _bytes_per_call(side: Sequence[Launched]) -> float:
    return sum(each.measured.bytes_per_call for each in side) / len(side)


def _least_sure(side: Sequence[Launched]) -> float | None:
    """The largest factor of a side's model error, which counts for all of it."""
    return max((each.measured.factor for each in side if each.measured.factor), default=None)


def _judge(
    sides: Sequence[vd.Launches],
    ratios: Sequence[float],
    floor: float,
    verdicts: int,
    *,
    virtual: bool,
) -> vd.Judgement:
    before, after = sides
    if virtual:
        medians = float(np.median(before.values)), float(np.median(after.values))
        return vd.judge_exact(*medians, floor)
    if ratios:
        return vd.judge_pairs(ratios, floor, verdicts)
    return vd.judge(before, after, floor, verdicts)


def _judge_all(rows: Sequence[Sides], floor: float, verdicts: int) -> vd.Judgement | None:
    """The verdict on the geometric mean of rows; None without a launch that has them all."""
    pairs, ratios = [_ratios(*row) for row in rows], list[float]()
    if any(pairs):
        whole = set.intersection(*map(set, pairs))  # pairs that lack no row
        logs = [[np.log(row[pair]) for row in pairs] for pair in sorted(whole)]
        ratios = [float(np.exp(np.mean(each))) for each in logs]
        if not ratios:
            return None
    sides = [_mean_of_rows([row[side] for row in rows]) for side in range(2)]
    if not ratios and not all(side.values for side in sides):
        return None
    return _judge(sides, ratios, floor, verdicts, virtual=all(map(_is_virtual, rows)))


def _mean_of_rows(rows: Sequence[Sequence[Launched]]) -> vd.Launches:
    """Geometric mean of the rows' medians, launch by launch; launches that lack a row are out."""
    # rows of one launch rise and fall together: the interval is over launches, as for any row
    logs: dict[tuple[int, int], list[float]] = {}
    began_s: dict[tuple[int, int], float] = {}
    for each in (each for row in rows for each in row):
        logs.setdefault(each.process, []).append(math.log(each.measured.median_ns))
        began_s[each.process] = each.began_s
    whole = {key: values for key, values in logs.items() if len(values) == len(rows)}
    means = [math.exp(sum(values) / len(values)) for values in whole.values()]
    return vd.Launches(means, [began_s[key] for key in whole])
