"""What ``dsv4kv trace mrc`` found, as tables."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.measure.statistics import Estimate
from dsv4kv.mrc.curves import Answer, Point
from dsv4kv.mrc.thin import PARTS
from dsv4kv.prefix.outcome import Losses, Outcome
from dsv4kv.units import format_bytes
from dsv4kv.view import markup
from dsv4kv.view.cells import format_estimate
from dsv4kv.view.table import ABSENT, Finding, Part, Table, Text, names, numbers, prose, tabulate

_GIB = 2**30


def written_bytes(outcome: Outcome, answer: Answer) -> int:
    """Bytes of window entries and states that a strategy writes."""
    window = outcome.checkpoint_tokens * answer.costs.window_token_bytes
    return window + (outcome.checkpoints or 0) * answer.costs.state_bytes


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for every capacity and everything measured at it."""
    for point in answer.points:
        at = {
            "capacity_tokens": point.capacity_tokens,
            "capacity_blocks": point.capacity_blocks,
            "capacity_bytes": point.capacity_bytes,
        }
        yield (
            at
            | {
                "kind": "curve",
                "name": "lru",
                "block_hit_share": point.block_hits,
                "hit_share": point.token_hits,
                "hit_tokens": round(point.token_hits * answer.input_tokens),
                "rejected_requests": point.rejected,
            }
            | _interval(point, answer)
        )
        kinds = ("strategy", point.strategies), ("rule", point.rules), ("policy", point.policies)
        for kind, outcomes in kinds:
            for outcome in outcomes:
                drafts = {"speculation": outcome.speculation} if kind == "rule" else {}
                yield at | {"kind": kind} | _outcome_row(outcome, answer) | drafts


def _interval(point: Point, answer: Answer) -> dict[str, float]:
    """The 95 % interval of a point's hits, where they are estimated."""
    if answer.kept_share == 1:
        return {}
    return {
        "hit_share_low": point.token_hits - point.token_error,
        "hit_share_high": point.token_hits + point.token_error,
    }


def _behind_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for every host memory behind every capacity, and every strategy there."""
    for behind in answer.behind:
        at = {
            "capacity_tokens": behind.gpu_tokens,
            "host_bytes": behind.host_bytes,
            "host_tokens": behind.host_tokens,
        }
        yield at | {
            "kind": "host",
            "name": "lru",
            "hit_share": behind.token_hits,
            "hit_tokens": round(behind.token_hits * answer.input_tokens),
            "won_tokens": round((behind.token_hits - behind.gpu_hits) * answer.input_tokens),
        }
        for outcome in behind.strategies:
            yield at | {"kind": "host strategy"} | _outcome_row(outcome, answer)


def _outcome_row(outcome: Outcome, answer: Answer) -> dict[str, Any]:
    lost = {f"lost_{name}_tokens": value for name, value in asdict(outcome.losses).items()}
    row: dict[str, Any] = {
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
            "unreachable_checkpoints": outcome.unreachable_checkpoints,
        }
    return row | lost


def to_csv(answer: Answer) -> str:
    """The rows as CSV; what a row does not have is empty."""
    return markup.to_csv(tabulate([*_rows(answer), *_behind_rows(answer)]))


def to_json(source: str, model: str, answer: Answer) -> str:
    """The rows and what they are about as one JSON document."""
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
        "kept_share": answer.kept_share,
        "rows": [*_rows(answer), *_behind_rows(answer)],
    }
    return json.dumps(document, indent=2)


def draw_answer(source: str, model: str, answer: Answer) -> str:
    """Hits over capacity as SVG: the curve, every strategy, every rule."""
    from dsv4kv.view.charts.figure import standalone_svg  # only where a chart is asked for
    from dsv4kv.view.charts.sweep import Metric, Point, sweep_chart

    points = []
    for at in answer.points:
        if at.capacity_bytes is None:
            continue
        place = at.capacity_bytes / _GIB
        ends = (at.token_hits - at.token_error, at.token_hits + at.token_error)
        interval = None if answer.kept_share == 1 else ends
        points.append(Point(place, "all that is cached", at.token_hits, interval))
        points += [
            Point(place, outcome.label, outcome.hit_share)
            for outcome in (*at.strategies, *at.rules, *at.policies)
        ]
    behind = {each.host_bytes / _GIB: each.token_hits for each in answer.behind}
    points += [Point(place, "all that is cached", hits) for place, hits in behind.items()]
    metric = Metric(
        "mrc",
        f"Share of prompt tokens that need not be computed: {Path(source).name}",
        points,
        show=lambda value: f"{value:.4g}",
        names={point.x: f"{point.x:.3g}" for point in points},
        may_be_log=False,
        note=f"dsv4kv trace mrc; {_certainty(answer)}; memory is binary: 1 GiB = 2^30 B",
    )
    return standalone_svg(sweep_chart(metric, f"compressed cache of {model}, GiB"))


def _certainty(answer: Answer) -> str:
    if answer.kept_share < 1:
        return f"from {answer.kept_share:.2g} of all blocks, 95 % intervals"
    return "exact"


_REASONS = {field.name: field.name.replace("_", " ") for field in fields(Losses)}


def show_answer(source: str, model: str, answer: Answer) -> Iterator[Part]:
    """The curve, then what strategies, rules and policies make of the last capacity."""
    yield (
        f"{source}: {answer.requests:,} requests, {answer.input_tokens:,} prompt tokens, "
        f"{answer.references:,} blocks of {answer.block_tokens:,} tokens"
    )
    yield from ("", _curve(model, answer))
    if answer.kept_share < 1:
        yield (
            f"Estimated from one in {round(1 / answer.kept_share):,} blocks, "
            f"{answer.kept_references:,} references to them; ± is half of a 95 % interval, from "
            f"{PARTS} parts that have no block in common."
        )
    if answer.behind:
        yield from ("", _host_table(answer))
    if answer.points[-1].strategies:
        yield from ("", _strategies(model, answer, answer.points[-1]))
    for point in answer.points:
        if outcomes := [*point.rules, *point.policies]:
            yield from ("", _rules(point, outcomes))
            yield _advice(point)
    for name in dict.fromkeys(o.name for point in answer.points for o in point.rules):
        if RULES[name].hopper_block_tokens:
            on = answer.arch or "sm_100, as none is named (--gpu)"
            yield Text(f"{name}: blocks as {RULES[name].engine} has them on {on}", "dim")
    yield from _warnings(answer)
    yield ""
    yield from (Text(line, "strong") for line in _sum_up(model, answer))


def _sum_up(model: str, answer: Answer) -> Iterator[str]:
    """How much cache is enough, and what is best at the largest capacity."""
    if answer.enough_tokens is not None:
        size = format_bytes(int(answer.enough_tokens * answer.costs.token_bytes))
        yield (
            f"90 % of the hits of a cache without bound need {answer.enough_tokens:,} tokens, "
            f"{size} of {model}'s compressed cache."
        )
    point = answer.points[-1]
    if outcomes := [*point.strategies, *point.rules, *point.policies]:
        good = _best(outcomes)
        yield (
            f"In {_capacity(point)} {good.label} saves {'most, ' if outcomes[1:] else ''}"
            f"{good.hit_share:.1%} of prompt tokens, of {point.token_hits:.1%} that are cached."
        )
    else:
        yield f"{point.token_hits:.1%} of prompt tokens hit in {_capacity(point)}."
    yield from _won(model, answer)


def _host_table(answer: Answer) -> Table:
    """What host memory behind the capacities would find, and what of it is won."""
    return Table(
        "Host memory behind it",
        [
            *numbers("GPU tokens", "host", "host tokens", "tokens hit", "won"),
            *numbers(*(outcome.name for outcome in answer.behind[0].strategies)),
        ],
        [
            (
                f"{each.gpu_tokens:,}",
                format_bytes(each.host_bytes),
                f"{each.host_tokens:,}",
                f"{each.token_hits:.5f}",
                f"{each.token_hits - each.gpu_hits:+.5f}",
                *(f"{outcome.hit_share:.4f}" for outcome in each.strategies),
            )
            for each in answer.behind
        ],
        note="share of prompt tokens; the host keeps what the GPUs keep, too",
        keys=2,
    )


def _won(model: str, answer: Answer) -> Iterator[str]:
    """What the most host memory wins behind the largest capacity, and what that rests on."""
    if not answer.behind:
        return
    each = max(answer.behind, key=lambda found: (found.gpu_tokens, found.host_bytes))
    won = each.token_hits - each.gpu_hits
    yield (
        f"{format_bytes(each.host_bytes)} of host memory behind {each.gpu_tokens:,} tokens wins "
        f"{won:.1%} of prompt tokens, {round(won * answer.input_tokens):,}: {each.token_hits:.1%} "
        f"are found instead of {each.gpu_hits:.1%}. That is where everything is written through "
        f"and comes back in time, at {float(answer.costs.token_bytes):,.2f} B a token of {model}; "
        "what an engine keeps of windows and padding makes it hold less (dsv4kv budget "
        "--host-tier), and dsv4kv replay with tiers.host adds the time."
    )


def _curve(model: str, answer: Answer) -> Table:
    rejects = any(point.rejected for point in answer.points)
    return Table(
        "Hits by capacity",
        [
            *numbers("tokens", f"GiB of {model}", "blocks", "tokens hit"),
            *numbers(*(["requests rejected"] if rejects else [])),
            *numbers(*(outcome.name for outcome in answer.points[0].strategies)),
        ],
        [
            (
                "no bound" if point.capacity_tokens is None else f"{point.capacity_tokens:,}",
                ABSENT if point.capacity_bytes is None else f"{point.capacity_bytes / _GIB:,.2f}",
                _with_error(point.block_hits, point.block_error, answer),
                _with_error(point.token_hits, point.token_error, answer),
                *([f"{point.rejected:,}"] if rejects else []),
                *(f"{outcome.hit_share:.4f}" for outcome in point.strategies),
            )
            for point in answer.points
        ],
        note="share of prompt tokens; under a strategy: not computed",
    )


def _with_error(share: float, error: float, answer: Answer) -> str:
    estimated = answer.kept_share < 1
    return format_estimate(Estimate(share, error)) if estimated else f"{share:.5f}"


def _strategies(model: str, answer: Answer, point: Point) -> Table:
    return Table(
        "Windows and states",
        [
            *names("strategy"),
            *numbers("not computed", "of what is cached", "written per new token"),
            *numbers("written", "read", *_shown(point.strategies)),
        ],
        [
            (
                outcome.name,
                f"{outcome.hit_share:.4f}",
                f"{outcome.hit_tokens / (outcome.found_tokens or 1):.1%}",
                f"{outcome.written_per_new_token:.4f}",
                format_bytes(written_bytes(outcome, answer)),
                format_bytes(outcome.checkpoint_reads * answer.costs.checkpoint_bytes),
                *_lost(outcome, point.strategies),
            )
            for outcome in point.strategies
        ],
        note=f"{_capacity(point)}; checkpoints of {model}",
    )


def _rules(point: Point, outcomes: list[Outcome]) -> Table:
    rejects = any(outcome.rejected for outcome in outcomes)
    return Table(
        "Rules",
        [
            *names("rule"),
            *numbers("hit tokens", "hit", *(["requests rejected"] if rejects else [])),
            *numbers(*_shown(outcomes)),
            *prose("setting", minor=True),
        ],
        [
            (
                outcome.label,
                f"{outcome.hit_tokens:,}",
                f"{outcome.hit_share:.5f}",
                *([f"{outcome.rejected:,}"] if rejects else []),
                *_lost(outcome, outcomes),
                rule.setting if (rule := RULES.get(outcome.name)) else "",
            )
            for outcome in outcomes
        ],
        note=f"{_capacity(point)}; tokens lost, as shares of all prompt tokens",
    )


def _shown(outcomes: tuple[Outcome, ...] | list[Outcome]) -> list[str]:
    """Headers of the reasons that occur."""
    return [f"lost to {_REASONS[name]}" for name in _occurring(outcomes)]


def _occurring(outcomes: tuple[Outcome, ...] | list[Outcome]) -> list[str]:
    return [name for name in _REASONS if any(getattr(o.losses, name) for o in outcomes)]


def _lost(outcome: Outcome, outcomes: tuple[Outcome, ...] | list[Outcome]) -> Iterator[str]:
    for name in _occurring(outcomes):
        yield f"{getattr(outcome.losses, name) / outcome.input_tokens:.4f}"


def _advice(point: Point) -> str:
    """Which setting of an engine hits most, and what the pool would do without windows."""
    settings: dict[tuple[str, str], list[Outcome]] = {}
    drafts: dict[str, list[Outcome]] = {}
    families: dict[str, list[Outcome]] = {}
    for outcome in (o for o in point.rules if o.name in RULES):
        family = outcome.name.partition(":")[0]
        drafts.setdefault(outcome.name, []).append(outcome)
        if RULES[outcome.name].windows:
            settings.setdefault((family, outcome.speculation), []).append(outcome)
            families.setdefault(family, []).append(outcome)
    sentences = [
        *(_wins(alike, lambda o: RULES[o.name].setting) for alike in settings.values()),
        *(
            _wins(alike, lambda o: SPECULATIONS[o.speculation].setting)
            for alike in drafts.values()
        ),
        *(_priced(alike[0]) for alike in drafts.values() if len(alike) == 1),
    ]
    sentences += [
        f"{good.label} still loses {point.token_hits - good.hit_share:.1%} to what a cache of "
        "compressed entries alone would hit in as many blocks."
        for good in map(_best, families.values())
        if point.token_hits > good.hit_share
    ]
    return " ".join(filter(None, sentences))


def _wins(alike: list[Outcome], setting: Callable[[Outcome], str]) -> str:
    """What the best of these wins back over the worst; empty where that is nothing."""
    good, bad = _best(alike), min(alike, key=lambda o: o.hit_tokens)
    if good.hit_tokens == bad.hit_tokens:
        return ""
    return (
        f"{setting(good)} wins back {good.hit_share - bad.hit_share:.1%} of all prompt tokens "
        f"over {setting(bad)} ({good.label})."
    )


def _priced(outcome: Outcome) -> str:
    """What drafts cost; empty where that is nothing."""
    if not outcome.losses.draft:
        return ""
    return (
        f"{outcome.label} loses {outcome.losses.draft / outcome.input_tokens:.1%} to its drafts: "
        f"--speculation {','.join(RULES[outcome.name].drafts)} shows what wins them back."
    )


def _best(alike: list[Outcome]) -> Outcome:
    return max(alike, key=lambda o: o.hit_tokens)


def _warnings(answer: Answer) -> Iterator[Part]:
    lost = {o.name: o.unreachable_checkpoints for o in answer.points[-1].strategies}
    for name, count in lost.items():
        if count:
            yield Finding(
                "warning",
                f"{name}: {count:,} checkpoints lie inside the partial last block of a prompt "
                f"({answer.trace_block_tokens} tokens), which never comes again: they can never "
                "be found. Leave --no-snap out.",
            )


def _capacity(point: Point) -> str:
    if point.capacity_tokens is None:
        return "a cache without bound"
    return f"{point.capacity_tokens:,} tokens"
