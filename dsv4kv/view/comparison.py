"""A comparison on a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dsv4kv.compare.comparison import OTHER_WORK, Comparison, Row
from dsv4kv.compare.side import Side, count_launches
from dsv4kv.measure.statistics import summarize
from dsv4kv.measure.verdict import CONFIDENCE, Judgement, Launches, Verdict
from dsv4kv.record.quantities import axis_text
from dsv4kv.record.replay import ReplayResult
from dsv4kv.record.schema import Case, Environment
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import format_arms, format_number, new_table
from dsv4kv.view.exports import escape_pipes
from dsv4kv.view.findings import Finding
from dsv4kv.view.page.inputs import Compared, ComparedRow
from dsv4kv.view.page.write import write_page

INTERVAL = f"{CONFIDENCE * 100:.0f} % interval"


def describe_side(side: Side) -> str:
    """Name, launches, revision: ``A (main): 7 launches, git 0123456789ab``."""
    count = count_launches(side)
    shas = dict.fromkeys(_revision(record.environment) for record in side.records)
    words = [f"{side.name}: {count} launch{'es' if count != 1 else ''}", *filter(None, shas)]
    return ", ".join(words)


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
    told = ", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict if count[verdict])
    mean = comparison.overall
    if mean is None:
        return f"{verdict}: nothing that both sides measured to its end can be compared"
    change = f"{describe_change(mean)} ({describe_interval(mean)}) on geometric mean"
    return f"{verdict}: {change}; of {len(comparison.rows)} rows {told}"


def explain(comparison: Comparison) -> str:
    """How to read the numbers."""
    if comparison.virtual:
        return f"times of a model, which every run gives again: exact; floor {comparison.floor}"
    what = (
        f"change between equal calls of launches whose steps took turns, {INTERVAL} over pairs of "
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


_STYLES = {
    Verdict.SAME: "green",
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "bold red",
    Verdict.UNCLEAR: "yellow",
}
LEVELS: dict[Verdict, Literal["good", "warning", "bad"]] = {
    Verdict.SAME: "good",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}
_MOST_LOSSES = 20


def view_comparison(comparison: Comparison, verdict: Verdict) -> Iterator[RenderableType]:
    """Sides, what must be known before reading on, the table, and the conclusion."""
    for side in (comparison.before, comparison.after):
        yield describe_side(side)
    yield from list_warnings(comparison)
    if comparison.rows:
        yield ""
        yield comparison_table(comparison)
        yield Text(explain(comparison), style="dim")
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
    told = [*comparison.losses, *comparison.missing]
    yield from (Finding("warning", sentence) for sentence in told[:_MOST_LOSSES])
    if len(told) > _MOST_LOSSES:
        yield Finding("warning", f"and {len(told) - _MOST_LOSSES} more")


def comparison_table(comparison: Comparison) -> Table:
    """A row per quantity, and the geometric mean."""
    rows, overall = comparison.rows, comparison.overall
    table = new_table("Comparison", f"{comparison.before.name} against {comparison.after.name}")
    swept = any(row.quantity.axis for row in rows)
    for header in (*(("at",) if swept else ()), "quantity"):
        table.add_column(header)
    columns = [
        _add_medians(table, f"{name},\nmedian µs", sides, virtual=comparison.virtual)
        for name, sides in (
            ("before", [row.before for row in rows]),
            ("after", [row.after for row in rows]),
        )
    ]
    for header in ("change", f"{INTERVAL},\n%"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("verdict")
    for index, (row, *cells) in enumerate(zip(rows, *columns, strict=True), start=1):
        names = [*((row.quantity.axis,) if swept else ()), str(row.quantity)]
        end = index == len(rows)
        table.add_row(*names, *cells, *_judged(row.judgement), end_section=end)
    if overall:
        names = [*(("",) if swept else ()), "geometric mean"]
        table.add_row(*names, "", "", *_judged(overall))
    return table


def reuse_table(rows: Sequence[ReuseRow]) -> Table:
    """What replays of both sides saved and lost."""
    table = new_table("Reuse")
    swept = any(row.axis for row in rows)
    for header in (*(("at",) if swept else ()), "of all requests"):
        table.add_column(header)
    for header in ("before", "after"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*((row.axis,) if swept else ()), row.name, row.before, row.after)
    return table


def _judged(judgement: Judgement) -> tuple[str, str, Text]:
    verdict = Text(judgement.verdict, _STYLES[judgement.verdict])
    if judgement.reason:
        verdict.append(f" {judgement.reason}", "dim")
    return describe_change(judgement), describe_interval(judgement), verdict


def _add_medians(
    table: Table, header: str, sides: Sequence[Launches], *, virtual: bool
) -> list[str]:
    """A column of medians, with their intervals where times were measured."""
    table.add_column(header, justify="right")
    found = [summarize(launches.values) for launches in sides]
    if virtual:
        return [format_number(each.median / 1e3) for each in found]
    return [format_arms(each, 1e-3) for each in found]


_HEADER = (
    f"| quantity | before, µs | after, µs | change | {INTERVAL}, % | verdict |",
    "|---|---:|---:|---:|---:|---|",
)


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


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.quantity),
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
    yield from (f"- {told}" for told in (*comparison.losses, *comparison.missing))
    changes = (Verdict.SLOWER, Verdict.FASTER)
    changed = [row for row in comparison.rows if row.judgement.verdict in changes]
    others = [row for row in comparison.rows if row.judgement.verdict not in changes]
    if changed:
        yield from ("", *_HEADER, *map(_line, changed))
    if others:
        summary = f"{len(others)} rows without a change that is one"
        yield from ("", f"<details><summary>{summary}</summary>", "")
        yield from (*_HEADER, *map(_line, others), "", "</details>")
    if rows := list_reuse(comparison.before, comparison.after):
        yield from ("", "| reuse | before | after |", "|---|---:|---:|")
        for each in rows:
            name = f"{each.axis}: {each.name}" if each.axis else each.name
            yield f"| {name} | {each.before} | {each.after} |"
    yield from ("", f"<sub>{explain(comparison)}</sub>")


def _line(row: Row) -> str:
    name = f"{row.quantity.axis}: {row.quantity}" if row.quantity.axis else str(row.quantity)
    verdict = f"{row.judgement.verdict} {row.judgement.reason}".strip()
    cells: Sequence[str] = (
        name,
        _micros(row.before),
        _micros(row.after),
        describe_change(row.judgement),
        describe_interval(row.judgement),
        verdict,
    )
    return "| " + " | ".join(map(escape_pipes, cells)) + " |"


def _micros(launches: Launches) -> str:
    return format_number(summarize(launches.values).median / 1e3)


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
        cautions=[*list_warnings(comparison), *_tell_omissions(comparison)],
        table=comparison_table(comparison),
        explanation=explain(comparison),
    )


def _tell_omissions(comparison: Comparison) -> Iterator[Finding]:
    """Sides of several records: a page with all of them would say everything many times."""
    for side in (comparison.before, comparison.after):
        if (count := len(side.records)) > 1:
            told = f"{side.name}: all {count} records are compared, the first is shown below"
            yield Finding("note", told)


def _name(row: Row) -> str:
    return ", ".join(filter(None, (row.quantity.axis, str(row.quantity))))
