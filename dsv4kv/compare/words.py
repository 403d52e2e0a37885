"""A comparison in words and numbers, for every way of telling it."""

from collections import Counter

from dsv4kv.compare.comparison import OTHER_WORK, Comparison
from dsv4kv.compare.side import Side, count_launches
from dsv4kv.measure.verdict import CONFIDENCE, Judgement, Verdict
from dsv4kv.report.record import Environment

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
