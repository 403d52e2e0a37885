"""A comparison: for a terminal, a pull request, a page and a program."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dsv4kv.compare.comparison import OTHER_WORK, Comparison
from dsv4kv.compare.comparison import Row as ComparisonRow
from dsv4kv.compare.side import Side, count_launches
from dsv4kv.measure.statistics import summarize
from dsv4kv.measure.verdict import CONFIDENCE, Judgement, Launches, Verdict
from dsv4kv.runs.quantities import axis_text
from dsv4kv.runs.replay import ReplayResult
from dsv4kv.runs.schema import Case, Environment
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import format_clocked, format_factor, measured_arms
from dsv4kv.view.charts.bars import Compared, ComparedRow
from dsv4kv.view.facts import layers_text
from dsv4kv.view.markup import to_markdown as render_markdown
from dsv4kv.view.page.write import write_page
from dsv4kv.view.table import Finding, Number, Part, Row, Table, Text, Tone, names, numbers, prose

INTERVAL = f"{CONFIDENCE * 100:.0f} % interval"


def describe_side(side: Side) -> str:
    """Name, launches, revision: ``A (main): 7 launches, git 0123456789ab``."""
    count = count_launches(side)
    shas = dict.fromkeys(_revision(record.environment) for record in side.records)
    launches = f"{side.name}: {count} launch{'es' if count != 1 else ''}"
    words = filter(None, [launches, _layers(side), *shas])
    return ", ".join(words)


def _layers(*sides: Side) -> str:
    """Of which part of a model their numbers are; empty where it is whole."""
    return layers_text(case for side in sides for record in side.records for case in record.cases)


def describe_change(judgement: Judgement) -> str:
    """Change of the time: ``+5.2 %`` is slower."""
    return f"{_percent(judgement.ratio)} %"


def describe_interval(judgement: Judgement) -> str:
    """Ends of the change's interval; ``?`` where the launches are too few to know one."""
    if judgement.interval is None:
        return "?"
    low, high = judgement.interval
    return "exact" if low == high else f"{_percent(low)} … {_percent(high)}"


def conclude(comparison: Comparison, verdict: Verdict) -> str:
    """The verdict and what it rests on, as one sentence."""
    count = Counter(row.judgement.verdict for row in comparison.rows)
    counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict if count[verdict])
    mean = comparison.overall
    if mean is None:
        return f"{verdict}: nothing that both sides measured to its end can be compared"
    change = f"{describe_change(mean)} ({describe_interval(mean)}) on geometric mean"
    layers = _layers(comparison.before, comparison.after)
    of_layers = f", {layers}" if layers else ""
    return f"{verdict}: {change}{of_layers}; of {len(comparison.rows)} rows {counts}"


def explain(comparison: Comparison) -> str:
    """How to read the numbers."""
    if comparison.virtual:
        exact = "times of a model, which every run gives again: changes by one clock are exact"
        return f"{exact}, whatever its error; floor {comparison.floor}"
    what = (
        f"change between equal calls of launches with interleaved steps, {INTERVAL} over pairs of "
        "launches"
        if comparison.in_turns
        else f"change: middle of all ratios between launches, {INTERVAL} over launches"
    )
    others = sum(row.other_work for row in comparison.rows)
    left_out = f"; the mean is without {OTHER_WORK} ({others} rows)" if others else ""
    at_once = f"all {len(comparison.rows) + 1} verdicts at once"
    return f"{what}, {at_once}; floor {comparison.floor}{left_out}"


def _percent(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f}"  # + 0.0: no -0.0


def _revision(environment: Environment) -> str:
    dirty = " (dirty)" if environment.git_dirty else ""
    return f"git {environment.git_sha[:12]}{dirty}" if environment.git_sha else ""


@dataclass(frozen=True)
class ReuseRow:
    """Something that replays of both sides count.

    Attributes:
        axis: Swept settings of the case; empty without a sweep.
        name: What is counted.
        before: How much, as text with its unit.
        after: Likewise.
    """

    axis: str
    name: str
    before: str
    after: str


def list_reuse(before: Side, after: Side) -> list[ReuseRow]:
    """Rows of every case that both sides replayed; what is nothing on both is left out."""
    first, second = _replays(before), _replays(after)
    return [
        ReuseRow(axis, name, counted, others[name])
        for axis in first
        if axis in second
        for others in [dict(_count(second[axis]))]
        for name, counted in _count(first[axis])
        if name in others and (counted, others[name]) != ("0", "0")
    ]


def _replays(side: Side) -> dict[str, ReplayResult]:
    cases: Iterator[Case] = (case for record in side.records for case in record.cases)
    return {axis_text(case): case.replay for case in cases if case.replay is not None}


def _count(result: ReplayResult) -> Iterator[tuple[str, str]]:
    reuse, total = result.reuse, max(1, result.reuse.prompt_tokens)
    yield "prompt tokens saved", f"{100 * reuse.saved_tokens / total:.2f} %"
    lost = sum(reuse.lost_tokens.values())
    yield "prompt tokens lost", f"{100 * lost / total:.2f} %"
    yield "prompt tokens computed", f"{reuse.computed_tokens:,}"
    yield "blocks evicted", f"{reuse.evicted_blocks:,}"
    yield "windows and states kept", format_bytes(reuse.kept_bytes)
    yield "pauses", f"{result.pauses:,}"
    yield "starts over", f"{result.evictions:,}"
    if fleet := result.fleet:
        yield "GPUs", f"{fleet.gpus:,}"
        yield "good requests", f"{fleet.good_requests:,}"
        yield "cached more than once", format_bytes(fleet.repeated_bytes)
        if fleet.imbalance is not None:
            yield "busiest replica over the mean", f"{fleet.imbalance:.2f}"


_TONES: dict[Verdict, Tone] = {
    Verdict.SAME: "good",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}
LEVELS: dict[Verdict, Literal["good", "warning", "bad"]] = {
    Verdict.SAME: "good",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}
_MOST_LOSSES = 20


def view_comparison(comparison: Comparison, verdict: Verdict) -> Iterator[Part]:
    """Sides, what must be known before reading on, the table, and the conclusion."""
    for side in (comparison.before, comparison.after):
        yield describe_side(side)
    yield from list_warnings(comparison)
    if comparison.rows:
        yield ""
        yield comparison_table(comparison)
        yield Text(explain(comparison), "dim")
    if rows := list_reuse(comparison.before, comparison.after):
        yield ""
        yield reuse_table(rows)
    yield ""
    yield Finding(LEVELS[verdict], conclude(comparison, verdict))


def list_warnings(comparison: Comparison) -> Iterator[Finding]:
    """What must be known before a comparison is believed."""
    if comparison.forced:
        yield Finding("bad", "the sides are not alike and are compared all the same (--force):")
    for difference in comparison.differences:
        yield Finding("note", str(difference))
    sentences = [*comparison.losses, *comparison.missing]
    yield from (Finding("warning", sentence) for sentence in sentences[:_MOST_LOSSES])
    if len(sentences) > _MOST_LOSSES:
        yield Finding("warning", f"and {len(sentences) - _MOST_LOSSES} more")


def comparison_table(comparison: Comparison) -> Table:
    """A row per quantity, and the geometric mean."""
    swept = any(row.quantity.axis for row in comparison.rows)
    mean = comparison.overall
    return Table(
        "Comparison",
        [
            *names(*(["at"] if swept else []), "quantity"),
            *numbers("before, median µs", "after, median µs", "change", f"{INTERVAL}, %"),
            *names("verdict"),
            *prose("why"),
        ],
        [
            (
                *([row.quantity.axis] if swept else []),
                str(row.quantity),
                _median(row.before, row.factors[0], virtual=comparison.virtual),
                _median(row.after, row.factors[1], virtual=comparison.virtual),
                *_judged(row.judgement),
            )
            for row in comparison.rows
        ],
        note=f"{comparison.before.name} against {comparison.after.name}",
        footer=[(*([""] if swept else []), "geometric mean", "", "", *_judged(mean))]
        if mean
        else [],
        keys=2 if swept else 1,
    ).noted(_layers(comparison.before, comparison.after))


def reuse_table(rows: Sequence[ReuseRow]) -> Table:
    """What replays of both sides saved and lost."""
    return Table(
        "Reuse",
        [*names("at", "of all requests"), *numbers("before", "after")],
        [(row.axis, row.name, row.before, row.after) for row in rows],
        keys=2,
    )


def _judged(judgement: Judgement) -> tuple[str, str, Text, Text]:
    return (
        describe_change(judgement),
        describe_interval(judgement),
        Text(judgement.verdict, _TONES[judgement.verdict]),
        Text(judgement.reason, "dim"),
    )


def _median(launches: Launches, factor: float | None, *, virtual: bool) -> Number:
    """A median with its interval, or with what a model's times are right within."""
    found = summarize(launches.values)
    if not virtual:
        return measured_arms(found, 1e-3)
    return Number(_micros(launches, factor), _error(factor))


def _micros(launches: Launches, factor: float | None) -> str:
    return format_clocked(summarize(launches.values).median / 1e3, factor)


def _error(factor: float | None) -> str:
    return format_factor(factor) if factor else ""


def to_document(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Everything, as JSON knows it; times in ns, one per launch, changes as ratios."""
    return {
        "verdict": verdict,
        "floor": asdict(comparison.floor),
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "geometric_mean": _judgement(comparison.overall) if comparison.overall else None,
        "rows": [_row(row) for row in comparison.rows],
        "reuse": [asdict(row) for row in list_reuse(comparison.before, comparison.after)],
        "missing": list(comparison.missing),
        "losses": list(comparison.losses),
        "differences": [asdict(difference) for difference in comparison.differences],
        "forced": comparison.forced,
    }


def to_markdown(comparison: Comparison, verdict: Verdict) -> str:
    """Changed rows in a table, all others folded away."""
    return "\n".join(_markdown(comparison, verdict)) + "\n"


def _side(side: Side) -> dict[str, Any]:
    runs = [record.run_id for record in side.records]
    return {"name": side.name, "runs": runs, "launches": count_launches(side)}


def _row(row: ComparisonRow) -> dict[str, Any]:
    return {
        **asdict(row.quantity),
        "within": list(row.factors),
        "before_ns": list(row.before.values),
        "after_ns": list(row.after.values),
        **_judgement(row.judgement),
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "ratio": judgement.ratio,
        "interval": judgement.interval,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
    }


def _markdown(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    yield f"**dsv4kv {conclude(comparison, verdict)}**"
    yield ""
    for side in (comparison.before, comparison.after):
        yield f"- {describe_side(side)}"
    if comparison.forced:
        yield "- **the sides are not alike and are compared all the same (`--force`)**"
    yield from (f"- {difference}" for difference in comparison.differences)
    yield from (f"- {sentence}" for sentence in (*comparison.losses, *comparison.missing))
    changes = (Verdict.SLOWER, Verdict.FASTER)
    changed = [row for row in comparison.rows if row.judgement.verdict in changes]
    others = [row for row in comparison.rows if row.judgement.verdict not in changes]
    if changed:
        yield from ("", render_markdown(_changes(changed)))
    if others:
        summary = f"{len(others)} rows without a change that is one"
        yield from ("", f"<details><summary>{summary}</summary>", "")
        yield from (render_markdown(_changes(others)), "", "</details>")
    if rows := list_reuse(comparison.before, comparison.after):
        cells = [(_at(each.axis, each.name), each.before, each.after) for each in rows]
        yield from (
            "",
            render_markdown(Table("", [*names("reuse"), *numbers("before", "after")], cells)),
        )
    yield from ("", f"<sub>{explain(comparison)}</sub>")


def _changes(rows: Sequence[ComparisonRow]) -> Table:
    """Without intervals of medians, which no page of a pull request has room for."""
    columns = [
        *names("quantity"),
        *numbers("before, µs", "after, µs", "change", f"{INTERVAL}, %"),
        *names("verdict"),
    ]
    return Table("", columns, [_changed(row) for row in rows])


def _changed(row: ComparisonRow) -> Row:
    return [
        _at(row.quantity.axis, str(row.quantity)),
        *(
            " ".join(filter(None, (_micros(side, factor), _error(factor))))
            for side, factor in zip((row.before, row.after), row.factors, strict=True)
        ),
        describe_change(row.judgement),
        describe_interval(row.judgement),
        f"{row.judgement.verdict} {row.judgement.reason}".strip(),
    ]


def _at(axis: str, name: str) -> str:
    return f"{axis}: {name}" if axis else name


def write_comparison(comparison: Comparison, verdict: Verdict, target: Path) -> None:
    """Write a page: what changed, and a record of each side.

    Raises:
        ConfigError: The file cannot be written.
    """
    records = [side.records[0] for side in (comparison.before, comparison.after)]
    write_page(records, target, for_page(comparison, verdict))


def for_page(comparison: Comparison, verdict: Verdict) -> Compared:
    """The comparison in the page's terms."""
    return Compared(
        before=comparison.before.name,
        after=comparison.after.name,
        floor=comparison.floor.value,
        rows=[ComparedRow(_name(row), row.judgement) for row in comparison.rows],
        overall=comparison.overall,
        verdict=Finding(LEVELS[verdict], conclude(comparison, verdict)),
        cautions=[*list_warnings(comparison), *_list_omissions(comparison)],
        table=comparison_table(comparison),
        explanation=explain(comparison),
    )


def _list_omissions(comparison: Comparison) -> Iterator[Finding]:
    """Sides of several records: a page with all of them would say everything many times."""
    for side in (comparison.before, comparison.after):
        if (count := len(side.records)) > 1:
            text = f"{side.name}: all {count} records are compared, the first is shown below"
            yield Finding("note", text)


def _name(row: ComparisonRow) -> str:
    return ", ".join(filter(None, (row.quantity.axis, str(row.quantity))))
