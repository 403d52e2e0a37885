"""What to change: every option with its gain, the cheapest that makes a deployment fit first."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dsv4kv.budget.fit import (
    fewest_gpus,
    fits,
    free_bytes,
    max_concurrency,
    max_context,
    tightest_free_bytes,
)
from dsv4kv.budget.scenario import Scenario, fix_layout, resolve
from dsv4kv.engines.flags import flag_for
from dsv4kv.errors import ConfigError

_LESS_IN_FLIGHT = 2048
_MORE_MEMORY = Fraction(95, 100)
_FORMATS = (
    ("indexer_format", "mxfp4", "4-bit indexer keys"),
    ("main_format", "fp8_ds_mla", "FP8 entries"),
    ("window_format", "fp8_ds_mla", "FP8 window entries"),
)


@dataclass(frozen=True)
class Option:
    """One change of the deployment: the options to give (``--in-flight-tokens 2048``), and why.

    Attributes:
        freed_bytes: Bytes it frees on the tightest GPU.
        concurrency: Requests of the same context that fit with it concurrently.
        fits: Whether what was asked fits with it.
        scenario: The deployment with it.
    """

    change: str
    reason: str
    freed_bytes: int
    concurrency: int
    fits: bool
    scenario: Scenario


def advise(scenario: Scenario, context_tokens: int, concurrency: int) -> list[Option]:
    """Changes that gain something, those with which most requests fit first.

    Where it does not fit, those that make it fit come first, the cheapest leading: settings,
    formats, less headroom, more GPUs, then serving less.
    """
    asked = (context_tokens, concurrency)
    free, most = tightest_free_bytes(scenario, *asked), max_concurrency(scenario, context_tokens)

    def option(other: Scenario, change: str, reason: str) -> Option:
        freed = tightest_free_bytes(other, *asked) - free
        held = max_concurrency(other, context_tokens)
        return Option(change, reason, freed, held, fits(other, *asked), other)

    options = []
    for changes, change, reason in _changes(scenario, asked):
        with suppress(ConfigError):
            (other,) = resolve(replace(fix_layout(scenario), **changes))
            found = option(other, change, reason)
            options += [found] if found.freed_bytes > 0 or found.concurrency > most else []
    by_gain = sorted(options, key=lambda each: (-each.concurrency, -each.freed_bytes))
    if fits(scenario, *asked):
        return by_gain
    if more := _more_gpus(scenario, *asked):
        layout = more.layout
        change = f"--gpus {layout.gpus} --tp {layout.tp} --dp {layout.dp}"
        options.append(option(more, change, f"more GPUs, as {layout.label}"))
    if most:
        change, reason = f"--concurrency {most}", "fewer concurrent requests"
        options.append(Option(change, reason, -free, most, True, scenario))
    if tokens := max_context(scenario, concurrency):
        change, reason = f"--context {tokens}", "shorter requests"
        options.append(Option(change, reason, -free, concurrency, True, scenario))
    enough = [each for each in options if each.fits]
    return enough + [each for each in by_gain if not each.fits]


def _more_gpus(scenario: Scenario, context_tokens: int, concurrency: int) -> Scenario | None:
    """The fewest GPUs that do, laid out as by default or as replicas of one GPU."""
    enough = []
    for tp in (None, 1):
        candidates = resolve(replace(scenario.inputs, gpus=None, tp=tp, dp=None, ep=None))
        found = fewest_gpus(candidates, context_tokens, concurrency)
        if found and found.layout.gpus > scenario.layout.gpus:
            enough.append(found)
    return min(enough, key=lambda found: found.layout.gpus, default=None)


def spread_layers(scenario: Scenario, context_tokens: int, concurrency: int) -> tuple[int, ...]:
    """Layers of every pipeline stage with which the tightest has most memory left.

    A layer moves from the tightest stage to the roomiest as long as that gains.
    """
    best = tuple(len(stage) for stage in scenario.stages)
    while True:
        stages = range(len(best))
        free = [free_bytes(scenario, stage, context_tokens, concurrency) for stage in stages]
        tight, roomy = free.index(min(free)), free.index(max(free))
        sizes = list(best)
        sizes[tight], sizes[roomy] = sizes[tight] - 1, sizes[roomy] + 1
        try:
            (other,) = resolve(replace(fix_layout(scenario), stage_layers=tuple(sizes)))
            gains = tightest_free_bytes(other, context_tokens, concurrency) > min(free)
        except ConfigError:  # the engine does not serve such stages
            gains = False
        if not gains or not sizes[tight]:
            return best
        best, scenario = tuple(sizes), other


def _changes(
    scenario: Scenario, asked: tuple[int, int]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Settings that may help, the cheapest first: what to replace, how to say it, why."""
    inputs, settings = scenario.inputs, scenario.settings
    family = scenario.engine.name.partition(":")[0]
    if settings.in_flight_tokens > _LESS_IN_FLIGHT:
        name = "in_flight_tokens" if inputs.in_flight_tokens else "step_tokens"
        change = f"{_word(family, name)} {_LESS_IN_FLIGHT}"
        yield {name: _LESS_IN_FLIGHT}, change, "smaller chunks of prompts"
    if settings.frees_windows is False:
        change = "SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS=1"
        yield {"window_slots": "freed"}, change, "frees window slots out of the window"
    if settings.request_limit:  # as it is given: SGLang's is of all replicas
        limit = inputs.request_limit or settings.assumed["request_limit"].value
        flag = _word(family, "request_limit")
        twice = "twice as many concurrent requests"
        yield {"request_limit": 2 * limit}, f"{flag} {2 * limit}", twice
        half = max(limit // 2, 1)  # half of one is that one, which gains nothing
        fewer = "half as many, less allocated at start-up"
        yield {"request_limit": half}, f"{flag} {half}", fewer
    yield from _layout_changes(scenario, asked)
    if inputs.state == "fp32":
        yield {"state": "online"}, "--state online", "HCA keeps a running softmax"
    if inputs.block_tokens is not None:
        yield {"block_tokens": None}, "without --block-tokens", "the engine's own block size"
    if inputs.draft_layers or inputs.draft_tokens:
        yield {"draft_layers": 0, "draft_tokens": 0}, "without drafts", "no speculation"
    for field, name, reason in _FORMATS:
        yield {field: name}, f"--{field.replace('_', '-')} {name}", reason
    if settings.memory_fraction < _MORE_MEMORY:
        change = f"{_word(family, 'memory_fraction')} {float(_MORE_MEMORY):g}"
        yield {"memory_fraction": _MORE_MEMORY}, change, "less headroom"


def _layout_changes(
    scenario: Scenario, asked: tuple[int, int]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    variable = _word(scenario.engine.family.name, "stage_layers")
    if scenario.layout.pp > 1 and not variable.startswith("-"):
        sizes = spread_layers(scenario, *asked)
        change = f"{variable}={','.join(map(str, sizes))}"
        yield {"stage_layers": sizes}, change, "layers where memory is left"
    ranks = scenario.layout.tp * scenario.layout.dp
    for tp in (tp for tp in range(1, scenario.layout.tp) if ranks % tp == 0):
        copies = f"{'fewer' if tp > 1 else 'no'} copies of the KV cache"
        replicas = {"tp": tp, "dp": ranks // tp, "ep": None}
        yield replicas, f"--tp {tp} --dp {ranks // tp}", copies


def _word(family: str, name: str) -> str:
    return flag_for(family, name.replace("_", "-"))
