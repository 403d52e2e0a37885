"""What ``dsv4kv trace mrc`` found, as tables."""

from collections.abc import Callable, Iterator
from dataclasses import fields

from rich.console import RenderableType
from rich.text import Text

from dsv4kv.cli.trace_mrc_files import written_bytes
from dsv4kv.prefix.analysis.losses import Losses
from dsv4kv.prefix.analysis.mrc import Answer, Point
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.rules import RULES
from dsv4kv.prefix.analysis.sample import CLASSES
from dsv4kv.prefix.analysis.sampling import LONG_REFERENCES, Sampling
from dsv4kv.prefix.analysis.speculation import SPECULATIONS
from dsv4kv.report.cells import ABSENT, new_table
from dsv4kv.units import format_bytes

_GIB = 2**30
_REASONS = {field.name: field.name.replace("_", " ") for field in fields(Losses)}


def show_answer(source: str, model: str, answer: Answer) -> Iterator[RenderableType]:
    """The curve, then what strategies, rules and policies make of the last capacity."""
    yield Text(
        f"{source}: {answer.requests:,} requests, {answer.input_tokens:,} prompt tokens, "
        f"{answer.references:,} blocks of {answer.block_tokens:,} tokens"
    )
    yield _curve(model, answer)
    if answer.enough_tokens is not None:
        size = format_bytes(int(answer.enough_tokens * answer.costs.token_bytes))
        yield Text(
            f"90 % of the hits of a cache without bound need {answer.enough_tokens:,} tokens, "
            f"{size} of {model}'s compressed cache."
        )
    if answer.points[-1].strategies:
        yield _strategies(model, answer, answer.points[-1])
    for point in answer.points:
        if outcomes := [*point.rules, *point.policies]:
            yield _rules(point, outcomes)
            yield Text(_advice(point))
    if any(point.estimates for point in answer.points):
        yield _estimates(answer)
        yield Text(_tell_sampling(answer.sampling))
    if answer.sampling.refused:
        yield Text(
            "Policies that no sample tells were simulated on the whole trace, though that is "
            "long: "
            f"{answer.sampling.refused}",
            "yellow",
        )
    yield from _warnings(answer)


def _curve(model: str, answer: Answer) -> RenderableType:
    table = new_table("Hits by capacity", "share of prompt tokens, strategies: not computed")
    for header in ("tokens", f"GiB of {model}", "blocks", "tokens hit"):
        table.add_column(header, justify="right", no_wrap=True)
    rejects = any(point.rejected for point in answer.points)
    if rejects:
        table.add_column("requests\nrejected", justify="right", no_wrap=True)
    for outcome in answer.points[0].strategies:
        table.add_column(outcome.name, justify="right", no_wrap=True)
    for point in answer.points:
        table.add_row(
            "no bound" if point.capacity_tokens is None else f"{point.capacity_tokens:,}",
            ABSENT if point.capacity_bytes is None else f"{point.capacity_bytes / _GIB:,.2f}",
            f"{point.block_hits:.5f}",
            f"{point.token_hits:.5f}",
            *([f"{point.rejected:,}"] if rejects else []),
            *(f"{outcome.hit_share:.4f}" for outcome in point.strategies),
        )
    return table


def _strategies(model: str, answer: Answer, point: Point) -> RenderableType:
    table = new_table("Windows and states", f"{_capacity(point)}; checkpoints of {model}")
    for header in ("strategy", "not computed", "of what\nis cached", "written per\nnew token",
                   "written", "read", *_shown(point.strategies)):  # fmt: skip
        table.add_column(header, justify="left" if header == "strategy" else "right")
    for outcome in point.strategies:
        share = outcome.hit_tokens / outcome.found_tokens if outcome.found_tokens else 0.0
        table.add_row(
            outcome.name,
            f"{outcome.hit_share:.4f}",
            f"{share:.1%}",
            f"{outcome.written_per_new_token:.4f}",
            format_bytes(written_bytes(outcome, answer)),
            format_bytes(outcome.checkpoint_reads * answer.costs.checkpoint_bytes),
            *_lost(outcome, point.strategies),
        )
    return table


def _rules(point: Point, outcomes: list[Outcome]) -> RenderableType:
    table = new_table("Rules", f"{_capacity(point)}; tokens lost, as shares of all prompt tokens")
    table.add_column("rule", no_wrap=True)
    rejects = ["requests\nrejected"] if any(o.rejected for o in outcomes) else []
    for header in ("hit tokens", "hit", *rejects, *_shown(outcomes)):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("setting", overflow="fold")
    for outcome in outcomes:
        rule = RULES.get(outcome.name)
        table.add_row(
            outcome.label,
            f"{outcome.hit_tokens:,}",
            f"{outcome.hit_share:.5f}",
            *(f"{outcome.rejected:,}" for _ in rejects),
            *_lost(outcome, outcomes),
            rule.setting if rule else "",
        )
    return table


def _estimates(answer: Answer) -> RenderableType:
    table = new_table("Policies", "estimated from a sample, share of prompt tokens")
    for header in ("tokens", "policy", "hit", "95 % interval", "lru, exact"):
        table.add_column(header, justify="left" if header == "policy" else "right", no_wrap=True)
    for point in answer.points:
        for estimate in point.estimates:
            table.add_row(
                f"{point.capacity_tokens:,}",
                estimate.name,
                f"{estimate.hit_share:.4f}",
                f"{estimate.low:.4f} to {estimate.high:.4f}",
                f"{point.token_hits:.4f}",
            )
    return table


def _tell_sampling(sampling: Sampling) -> str:
    """What the policies were simulated on, as sentences."""
    why = (
        f" A whole simulation is more than {LONG_REFERENCES // 10**6} million block references "
        "times policies times capacities; --sample 1 asks for it."
        if sampling.automatic
        else ""
    )
    return (
        f"Simulated on {sampling.share:.1%} of {sampling.families:,} families of prompts, once "
        f"more in {CLASSES} parts for the intervals; the distance to least recently used is what "
        f"is estimated.{why}"
    )


def _shown(outcomes: tuple[Outcome, ...] | list[Outcome]) -> list[str]:
    """Headers of the reasons that occur."""
    return [f"lost to\n{_REASONS[name]}" for name in _occurring(outcomes)]


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
        f"--speculation {','.join(RULES[outcome.name].speculations)} tells what wins them back."
    )


def _draft_setting(outcome: Outcome) -> str:
    return SPECULATIONS[outcome.speculation].setting


def _best(alike: list[Outcome]) -> Outcome:
    return max(alike, key=lambda o: o.hit_tokens)


def _warnings(answer: Answer) -> Iterator[RenderableType]:
    lost = {o.name: o.unreachable_checkpoints for o in answer.points[-1].strategies}
    for name, count in lost.items():
        if count:
            yield Text(
                f"{name}: {count:,} checkpoints lie inside the partial last block of a prompt "
                f"({answer.trace_block_tokens} tokens), which never comes again: they can never "
                "be found. Leave --no-snap out.",
                "yellow",
            )


def _capacity(point: Point) -> str:
    if point.capacity_tokens is None:
        return "a cache without bound"
    return f"{point.capacity_tokens:,} tokens"
