"""A comparison: for a terminal, a page and a program."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from math import log
from typing import Any, Final, Literal

from dsv4kv.bench.compare.comparison import OTHER_WORK, Comparison, Row, Side, count_launches
from dsv4kv.bench.compare.verdict import CONFIDENCE, Judgement, Verdict
from dsv4kv.runs.parts import ReplayResult
from dsv4kv.runs.quantities import axis_text
from dsv4kv.runs.statistics import summarize
from dsv4kv.units import format_bytes
from dsv4kv.view import plots
from dsv4kv.view import table as tb
from dsv4kv.view.bench import checked, name_run
from dsv4kv.view.facts import layers_text

INTERVAL = f"{CONFIDENCE * 100:.0f} % interval"
LEVELS: Final[dict[Verdict, Literal["good", "warning", "bad"]]] = {
    Verdict.SAME: "good",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}
_MANIFOLD = 10  # from here on a change is a ratio
_CHANGES = (Verdict.SLOWER, Verdict.FASTER)
_MAX_LOSSES, _MAX_DRAWN = 20, 100


def comparison_page(comparison: Comparison, verdict: Verdict) -> tb.Page:
    """The verdict, the rows that carry it, and all rows."""
    sides = (comparison.before, comparison.after)
    warnings = list(_list_warnings(comparison))
    answer: list[tb.Part] = [tb.Finding(LEVELS[verdict], conclude(comparison, verdict))]
    answer += warnings[:4]
    if len(warnings) > 4:
        answer.append(tb.warning(f"and {len(warnings) - 4} more: --verbose"))
    parts: list[tb.Part] = [*map(_describe_side, sides)]
    if comparison.rows:
        answer += ["", _comparison_table(comparison)]
        parts.append(tb.dim(explain(comparison)))
        if any(row.judgement.interval for row in comparison.rows):
            parts.append(_chart(comparison))
    if reuse := _list_reuse(*sides):
        cells = [
            (e["axis"], e["name"], tb.Number(e["before"]), tb.Number(e["after"])) for e in reuse
        ]
        answer += ["", tb.Table("Reuse", ["at", "reuse", "before", "after"], cells, keys=2)]
    whats = dict.fromkeys(name_run(record) for side in sides for record in side.records)
    title = f"{sides[1].name} against {sides[0].name}: {'; '.join(whats)}"
    return tb.Page(title, answer, [tb.Section("Comparison", [*parts, *warnings])])


def _describe_side(side: Side) -> str:
    """Name, launches, revision: ``A (main): 7 launches, git 0123456789ab``."""
    count, parts = count_launches(side), dict[str, None]()
    for each in (record.environment for record in side.records):
        dirty = " (dirty)" if each.git_dirty else ""
        parts |= {f"git {each.git_sha[:12]}{dirty}": None} if each.git_sha else {}
    launches = f"{side.name}: {count} launch{'es' if count != 1 else ''}"
    return ", ".join(filter(None, (launches, _layers(side), *parts)))


def _layers(*sides: Side) -> str:
    return layers_text(case for side in sides for case in side.cases)


def conclude(comparison: Comparison, verdict: Verdict) -> str:
    """The verdict and what it rests on, as one sentence."""
    count = Counter(row.judgement.verdict for row in comparison.rows)
    counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in Verdict if count[verdict])
    mean = comparison.overall
    if mean is None:
        return f"{verdict}: nothing that both sides measured to its end can be compared"
    change = f"{_change(mean)} ({'simulated' if comparison.virtual else _interval(mean)})"
    layers = _layers(comparison.before, comparison.after)
    names = f"{comparison.after.name} against {comparison.before.name}"
    reason = f" ({mean.reason})" if mean.reason else ""
    end = f"{reason}, {layers}, {names}" if layers else f"{reason}, {names}"
    if len(comparison.rows) == 1:
        return f"{verdict}: {comparison.rows[0].quantity} {change}{end}"
    rows = f"of {len(comparison.rows)} rows {counts}"
    return f"{verdict}: {change} on geometric mean{end}; {rows}"


def explain(comparison: Comparison) -> str:
    if comparison.virtual:
        again = "simulated: every run gives the same times, so changes have no interval"
        return f"{again}; next to a time, its error; floor {comparison.floor * 100:.3g} %"
    what = (
        f"change between equal calls of launches with interleaved steps, {INTERVAL} over pairs of "
        "launches"
        if comparison.in_turns
        else f"change: median of all ratios between launches, {INTERVAL} over launches"
    )
    others = sum(row.other_work for row in comparison.rows)
    excluded = f"; the mean is without {OTHER_WORK} ({others} rows)" if others else ""
    small = f"; below 0.5 % of the time, without a row: {', '.join(comparison.small)}"
    small, rows = small if comparison.small else "", len(comparison.rows)
    together = f", of the mean, and of all {rows} rows together" if rows > 1 else ""
    return f"{what}{together}; floor {comparison.floor * 100:.3g} %{excluded}{small}"


def _list_warnings(comparison: Comparison) -> Iterator[tb.Finding]:
    if comparison.only:
        names = ", ".join(comparison.only)
        yield tb.note(f"only {names} compared; everything else: --only all")
    if comparison.forced:
        yield tb.bad("the sides are not alike and are compared anyway (--force):")
    yield from (tb.note(str(difference)) for difference in comparison.differences)
    sentences = [*comparison.losses, *comparison.missing]
    yield from map(tb.warning, sentences[:_MAX_LOSSES])
    if len(sentences) > _MAX_LOSSES:
        yield tb.warning(f"and {len(sentences) - _MAX_LOSSES} more")


def _comparison_table(comparison: Comparison) -> tb.Table:
    rows, mean, virtual = _by_change(comparison), comparison.overall, comparison.virtual

    def judged(read: Callable[[Judgement], Any]) -> tb.Read:
        return lambda row: read(row.judgement if isinstance(row, Row) else row)

    columns: list[tb.Column] = [
        ("at", lambda row: row.quantity.axis if isinstance(row, Row) else ""),
        ("quantity", lambda row: str(row.quantity) if isinstance(row, Row) else "geometric mean"),
        ("change", judged(_change)),
    ]
    if not virtual and any(row.judgement.interval for row in rows):
        columns.append((f"{INTERVAL}, %", judged(lambda found: tb.Number(_interval(found)))))
    columns += [
        ("verdict", judged(_verdict)),
        ("before, µs", lambda row: _median(row, 0, virtual=virtual)),
        ("after, µs", lambda row: _median(row, 1, virtual=virtual)),
    ]
    reasons = dict.fromkeys(row.judgement.reason for row in rows)
    if len(reasons) > 1:
        columns.append(("why", judged(lambda found: tb.dim(found.reason))))
    notes = [
        _layers(comparison.before, comparison.after),
        f"{comparison.after.name} against {comparison.before.name}",
        *(reasons if len(reasons) == 1 else ()),
    ]
    swept = any(row.quantity.axis for row in rows)
    return tb.Table(
        "Comparison",
        columns if swept else columns[1:],
        rows,
        "; ".join(filter(None, notes)),
        footer=[mean] if mean and len(rows) > 1 else [],
        caption="" if virtual else "change: median ratio of launches, not of medians",
        keys=2 if swept else 1,
        least=["before, µs", "after, µs"],
    )


def _by_change(comparison: Comparison) -> list[Row]:
    def weight(row: Row) -> tuple[bool, float]:
        return row.judgement.verdict in _CHANGES, abs(log(row.judgement.ratio))

    return sorted(comparison.rows, key=weight, reverse=True)


def _change(judgement: Judgement) -> str:
    """Change of the time: ``+5.2 %`` is slower; a ratio, ``×1,928``, from ten times on."""
    text = _changed(judgement.ratio)
    return text if text[0] in "×÷" else f"{text} %"


def _changed(ratio: float) -> str:
    if 1 / _MANIFOLD < ratio < _MANIFOLD:
        return f"{_percent(ratio):+.1f}"
    return f"×{tb.number(ratio)}" if ratio > 1 else f"÷{tb.number(1 / ratio)}"


def _interval(judgement: Judgement) -> str:
    """Ends of the change's interval; ``?`` where the launches are too few to know one."""
    if judgement.interval is None:
        return "?"
    low, high = judgement.interval
    return f"{_changed(low)} … {_changed(high)}"


def _percent(ratio: float) -> float:
    return round((ratio - 1) * 100, 1) + 0.0  # + 0.0: no -0.0


def _verdict(judgement: Judgement) -> tb.Text:
    mark = "! " if judgement.verdict is Verdict.UNCLEAR else ""
    return tb.Text(f"{mark}{judgement.verdict}", LEVELS[judgement.verdict])


def _median(row: Row | Judgement, side: int, *, virtual: bool) -> tb.Number | str:
    if not isinstance(row, Row):
        return ""
    found, factor = summarize((row.before, row.after)[side].values), row.factors[side]
    if not virtual:
        return checked(found.estimate, 1e-3)
    words = tb.factor(factor) if factor else ""
    return tb.Number(tb.clocked(found.median / 1e3, factor), words)


def _chart(comparison: Comparison) -> tb.Chart:
    """Change of time in per cent with its interval; the band is what counts as no change."""
    tones = {Verdict.SAME: "dim", Verdict.FASTER: "good", Verdict.SLOWER: "bad"}

    def row(name: str, found: Judgement) -> plots.Bar:
        ends = [_percent(end) for end in found.interval or (found.ratio, found.ratio)]
        tone = tones.get(found.verdict, "warning")
        text = f"{_change(found)}  {found.verdict.lower()}"
        return plots.Bar(name, _percent(found.ratio), text, (ends[0], ends[1]), tone)

    rows = [
        row(": ".join(filter(None, (each.quantity.axis, str(each.quantity)))), each.judgement)
        for each in _by_change(comparison)[:_MAX_DRAWN]
    ]
    rows += [row("geometric mean", comparison.overall)] if comparison.overall else []
    floor = comparison.floor * 100
    title = f"Change of time from {comparison.before.name} to {comparison.after.name}"
    return plots.bars(title, rows, unit="%", dots=True, band=(-floor, floor))


def _list_reuse(before: Side, after: Side) -> list[dict[str, str]]:
    first, second = (
        {
            axis_text(case): dict(_count(case.replay))
            for record in side.records
            for case in record.cases
            if case.replay is not None
        }
        for side in (before, after)
    )
    return [
        {"axis": axis, "name": name, "before": counted, "after": second[axis][name]}
        for axis in first
        if axis in second
        for name, counted in first[axis].items()
        if name in second[axis] and (counted, second[axis][name]) != ("0", "0")
    ]


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


def to_document(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Everything, as JSON knows it; times in ns, one per launch, changes as ratios."""

    def judgement(found: Judgement) -> dict[str, Any]:
        names = ("ratio", "interval", "verdict", "reason")
        return {name: getattr(found, name) for name in names}

    def side(found: Side) -> dict[str, Any]:
        runs = [record.run_id for record in found.records]
        return {"name": found.name, "runs": runs, "launches": count_launches(found)}

    def row(found: Row) -> dict[str, Any]:
        return {
            **asdict(found.quantity),
            "within": list(found.factors),
            "before_ns": list(found.before.values),
            "after_ns": list(found.after.values),
            **judgement(found.judgement),
        }

    return {
        "verdict": verdict,
        "floor": {"value": comparison.floor},
        "before": side(comparison.before),
        "after": side(comparison.after),
        "geometric_mean": judgement(comparison.overall) if comparison.overall else None,
        "rows": [row(each) for each in comparison.rows],
        "reuse": _list_reuse(comparison.before, comparison.after),
        "missing": list(comparison.missing),
        "losses": list(comparison.losses),
        "differences": [asdict(difference) for difference in comparison.differences],
        "forced": comparison.forced,
    }
