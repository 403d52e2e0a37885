"""``dsv4kv trace``: what a trace asks for; its hit rate by capacity, rule and policy."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dsv4kv.choices import listed
from dsv4kv.core.outcome import REASONS
from dsv4kv.engines.names import RULES
from dsv4kv.model.presets import load_model
from dsv4kv.replay.mrc import Answer, Point
from dsv4kv.replay.rules import Outcome
from dsv4kv.traces import TraceSummary
from dsv4kv.units import format_bytes
from dsv4kv.view import table as tb
from dsv4kv.view.plots import Line, lines

_GIB = 2**30
_MAX_ROWS = 7


def written_bytes(outcome: Outcome, answer: Answer) -> int:
    """Bytes of window entries and states that a strategy writes."""
    window = outcome.checkpoint_tokens * answer.costs.window_token_bytes
    return window + (outcome.checkpoints or 0) * answer.costs.state_bytes


_CAPACITIES = ("capacity_tokens", "capacity_blocks", "capacity_bytes")


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    for point in answer.points:
        at = {name: getattr(point, name) for name in _CAPACITIES}
        curve = at | {
            "kind": "curve",
            "name": "lru",
            "block_hit_share": point.block_hits,
            "hit_share": point.token_hits,
            "hit_tokens": round(point.token_hits * answer.input_tokens),
            "rejected_requests": point.rejected,
        }
        yield curve
        kinds = {"strategy": point.strategies, "rule": point.rules, "policy": point.policies}
        for kind, outcomes in kinds.items():
            for outcome in outcomes:
                row = at | {
                    "kind": kind,
                    "name": outcome.name,
                    "hit_share": outcome.hit_share,
                    "hit_tokens": outcome.hit_tokens,
                    "hit_requests": outcome.hit_requests,
                    "found_tokens": outcome.found_tokens,
                    "rejected_requests": outcome.rejected,
                }
                if outcome.found_blocks is not None:
                    row["block_hit_share"] = outcome.found_blocks / answer.references
                if outcome.checkpoints is not None:
                    row |= {
                        "checkpoints": outcome.checkpoints,
                        "written_per_new_token": outcome.written_per_new_token,
                        "written_bytes": written_bytes(outcome, answer),
                        "read_bytes": outcome.checkpoint_reads * answer.costs.checkpoint_bytes,
                    }
                row |= {f"lost_{name}_tokens": outcome.losses.get(name, 0) for name in REASONS}
                yield row | ({"speculation": outcome.speculation} if kind == "rule" else {})


def to_json(source: str, model: str, answer: Answer) -> str:
    document = {
        "source": source,
        "model": model,
        "requests": answer.requests,
        "input_tokens": answer.input_tokens,
        "block_references": answer.references,
        "block_tokens": answer.block_tokens,
        "trace_block_tokens": answer.trace_block_tokens,
        "bytes_per_token": float(answer.costs.token_bytes),
        "checkpoint_bytes": answer.costs.checkpoint_bytes,
        "tokens_for_90_percent": answer.enough_tokens,
        "arch": answer.arch,
        "rows": list(_rows(answer)),
    }
    return json.dumps(document, indent=2)


def mrc_page(source: str, model: str, answer: Answer) -> tb.Page:
    """The best hit rate, the table that carries it, and what to ask next; then everything."""
    # the largest capacity by rules or policies, where there are any; else without bound
    asked = [point for point in answer.points if point.rules or point.policies]
    point = asked[-1] if asked else answer.points[-1]
    outcomes = [*point.rules, *point.policies]
    parts: list[tb.Part] = [*_sum_up(model, answer, point)]
    parts.append(
        f"{answer.requests:,} requests of {source}, {answer.input_tokens:,} prompt tokens, "
        f"{answer.references:,} blocks of {answer.block_tokens:,} tokens; exact."
    )
    if outcomes:
        parts += ["", _outcomes_table(answer, point, outcomes, brief=True)]
        flat = dict.fromkeys(o.name for o in point.rules if "flat" in RULES[o.name].default_for)
        if flat and load_model(model).kind != "flat":
            rules = listed(flat)
            parts.append(tb.note(f"{rules}: keeps no windows, so no rule for {model}"))
    else:
        parts += ["", _curve_table(model, answer, limit=_MAX_ROWS)]
    if point.rules:
        good = max(_ruled(model, point) or point.rules, key=lambda o: o.hit_tokens)
        rule = ("--model", model, "--rule", good.name)
        parts += ["", tb.Command.of("dsv4kv", "replay", source, *rule)]
    elif answer.enough_tokens:
        rest = ("--model", model, "--capacity", answer.enough_tokens, "--rule", "all")
        parts += ["", tb.Command.of("dsv4kv", "trace", "mrc", source, *rest)]
    title = f"Hit rate of {Path(source).name} by cache capacity, {model}"
    return tb.Page(title, parts, list(_sections(model, answer)))


def _ruled(model: str, point: Point) -> list[Outcome]:
    """By the rules that engines have for the model, if there are any; else by all of engines."""
    kind = load_model(model).kind
    ruled = [outcome for outcome in point.rules if RULES[outcome.name].engine]
    return [each for each in ruled if kind in RULES[each.name].default_for] or ruled


def _sum_up(model: str, answer: Answer, point: Point) -> Iterator[tb.Text]:
    unlimited = answer.points[-1].token_hits
    if not unlimited:
        yield tb.strong("No prompt begins as an earlier one: nothing hits at any capacity.")
        return
    where = "With unlimited memory,"
    if point.capacity_tokens:
        where = f"In a pool of {point.capacity_tokens:,} tokens,"
    ruled = _ruled(model, point)
    outcomes = ruled or [*point.rules, *point.policies] or point.strategies  # as the table below
    sentence = f"{where} {point.token_hits:.1%} of prompt tokens hit."
    if outcomes:
        best = max(outcomes, key=lambda outcome: outcome.hit_share)
        bound = f"upper bound {point.token_hits:.1%}"
        if point.rules or point.policies:
            # other blocks or evictions may hit more than the curve's in the same memory
            bound = f"with unlimited memory at most {unlimited:.1%}"
        named = "the best is " if outcomes[1:] else ""
        if 0 < len(ruled) < len(point.rules):
            named = f"the best rule for {model} is "
        hits = f"{best.hit_share:.1%} of prompt tokens hit ({bound})"
        sentence = f"{where} {named}{best.label}: {hits}."
    yield tb.strong(sentence)
    if answer.enough_tokens is not None:
        held = format_bytes(int(answer.enough_tokens * answer.costs.token_bytes))
        sentence = (
            f"90 % of the hits of an unlimited cache need {answer.enough_tokens:,} tokens, {held} "
            f"of {model}'s compressed cache."
        )
        yield tb.strong(sentence)


def _sections(model: str, answer: Answer) -> Iterator[tb.Section]:
    yield tb.Section("By capacity", [hits_chart(model, answer), _curve_table(model, answer)])
    last = answer.points[-1]
    for point in answer.points:
        if outcomes := [*point.rules, *point.policies]:
            table = _outcomes_table(answer, point, outcomes)
            yield tb.Section(f"Rules, {_capacity(point)}", [table])
    if last.strategies:
        table = _outcomes_table(answer, last, last.strategies)
        yield tb.Section("Windows and states", [table], f"checkpoints of {model}")


def hits_chart(model: str, answer: Answer) -> tb.Chart:
    """Hits over capacity: the curve, every strategy, every rule, every policy."""
    points = [point for point in answer.points if point.capacity_bytes]
    xs = [(point.capacity_bytes or 0) / _GIB for point in points]
    series = [Line("all cached", xs, [point.token_hits * 100 for point in points])]
    named: dict[str, list[tuple[float, float]]] = {}
    for x, point in zip(xs, points, strict=True):
        for outcome in (*point.strategies, *point.rules, *point.policies):
            named.setdefault(outcome.label, []).append((x, outcome.hit_share * 100))
    series += [Line(name, *zip(*rows, strict=True)) for name, rows in named.items()]
    title = "Prompt tokens that hit, exact"
    return lines(title, series, x=f"compressed cache of {model}, GiB", unit="%")


def _curve_table(model: str, answer: Answer, limit: int | None = None) -> tb.Table:
    """Hits at every capacity, or at ``limit`` of them, the largest included."""
    points, names = answer.points, answer.points[0].strategies
    rejects = any(point.rejected for point in points)
    if limit and len(points) > limit:
        step = (len(points) - 1) / (limit - 1)
        points = tuple(points[round(number * step)] for number in range(limit))

    def gib(point: Point) -> str | None:
        held = (point.capacity_bytes or 0) / _GIB
        return (f"{held:,.2f}" if held >= 0.1 else tb.number(held)) if held else None

    def hit(point: Point, number: int) -> str:
        return f"{point.strategies[number].hit_share:.2%}"

    kept = "next to the upper bound: hits if windows and states are kept by that strategy"
    return tb.Table(
        "Hit rate by capacity",
        [
            ("tokens", lambda point: point.capacity_tokens or None),
            ("GiB", gib),
            ("all cached", lambda point: f"{point.token_hits:.2%}"),
            *((each.name, partial(hit, number=n)) for n, each in enumerate(names)),
            *([("rejected", lambda point: point.rejected)] if rejects else []),
        ],
        points,
        note=f"of prompt tokens; – is unlimited; GiB of {model}'s compressed cache",
        caption=kept if names else "",
    )


def _outcomes_table(
    answer: Answer, point: Point, outcomes: Sequence[Outcome], *, brief: bool = False
) -> tb.Table:
    """What strategies, rules or policies hit and lose; ``brief``: the best first, less of each."""
    columns: list[tb.Column] = [
        ("rule", lambda outcome: outcome.label),
        ("hit", lambda outcome: f"{outcome.hit_share:.2%}"),
    ]
    if any(outcome.rejected for outcome in outcomes):
        columns.append(("rejected", lambda outcome: outcome.rejected))

    def lost(outcome: Outcome, name: str) -> str:
        return f"{outcome.losses.get(name, 0) / outcome.input_tokens:.2%}"

    columns += [
        (f"lost: {name.replace('_', ' ')}", partial(lost, name=name))
        for name in REASONS
        if any(outcome.losses.get(name) for outcome in outcomes)
    ]
    if brief:
        outcomes = sorted(outcomes, key=lambda outcome: -outcome.hit_tokens)
    elif all(outcome.checkpoints is not None for outcome in outcomes):
        read_bytes = answer.costs.checkpoint_bytes
        columns += [
            ("written", lambda outcome: tb.size(written_bytes(outcome, answer))),
            ("per new token", lambda outcome: f"{outcome.written_per_new_token:.4f}"),
            ("read", lambda outcome: tb.size(outcome.checkpoint_reads * read_bytes)),
        ]
    else:
        columns.append(("setting", lambda o: RULES[o.name].setting if o.name in RULES else ""))
    return tb.Table("Rules", columns, outcomes, f"{_capacity(point)}; shares of all prompt tokens")


def _capacity(point: Point) -> str:
    if point.capacity_tokens is None:
        return "unlimited cache"
    return f"{point.capacity_tokens:,} tokens"


def describe_trace(summary: TraceSummary, *, stores: bool = False) -> Iterator[tb.Part]:
    """The prefix hit rate, then requests and lengths; of what a server stored no hit rate."""
    answer = "no prefix hashes: the hit rate is unknown"
    if stores:
        answer = (
            "stores-only: what a server stored, not what was requested; prompts cached as a whole "
            "are missing, so the hit rate is unknown"
        )
    elif summary.hit_share is not None:
        answer = f"{summary.hit_share:.2%} of block references hit with unlimited memory"
    yield tb.strong(answer)
    yield f"{summary.requests:,} requests over {summary.duration_s:,.1f} s"
    yield from describe_bursts(summary.requests, summary.arrivals, summary.duration_s)
    if summary.hit_share is not None:
        yield (
            f"{summary.block_references:,} block references (prefix hashes) to "
            f"{summary.distinct_blocks:,} distinct blocks of {summary.hash_block_tokens:,} tokens"
        )
    both = summary.input_tokens, summary.output_tokens
    rows: dict[str, list[float]] = {"total": [each.total for each in both]}
    rows["mean"] = [each.total / summary.requests for each in both]
    rows |= {name: [getattr(each, name) for each in both] for name in ("p50", "p90", "p99", "max")}
    cells = [(name, *(f"{value:,.0f}" for value in values)) for name, values in rows.items()]
    yield from ("", tb.Table("Lengths", ["tokens", "prompt", "output"], cells))


def describe_bursts(requests: int, arrivals: int, duration_s: float) -> Iterator[tb.Finding]:
    """Warn of timestamps seconds apart that many requests share."""
    apart_s = duration_s / max(arrivals - 1, 1)
    if arrivals > 1 and apart_s >= 1 and requests >= 2 * arrivals:
        sentence = (
            f"{requests / arrivals:.1f} requests share a timestamp on average, {apart_s:.2g} s "
            "apart: a replay queues these bursts, which the recorded server may not have seen"
        )
        yield tb.warning(sentence)
