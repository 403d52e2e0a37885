"""What fits, and what to change: one forward function of context and concurrency, and searches.

The model of a step: one request fills its context with a chunk of ``in_flight_tokens``, all others
decode. So the reserve for tokens in flight is taken once per replica, and the indexer's logits of
that chunk are the transient peak: a CSA layer scores every query token of a chunk against every
indexer key it may see, in float32, before the top k are taken. Engines cut the chunk where its
logits would be too large, and allocate them in different places (``LogitsRoom``).
Source: sglang#39095, vllm#45663; vLLM 0.20 to 0.33, SGLang 0.5.12 to 0.5.23.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from dsv4kv.budget.inputs import Inputs
from dsv4kv.budget.scenario import Scenario, fix_layout, resolve
from dsv4kv.engines.contract import PoolCost
from dsv4kv.engines.flags import SLOTTED
from dsv4kv.engines.names import flag_for
from dsv4kv.errors import ConfigError

_CSA_RATIO = 4
_ALIGN_KEYS = 256
_LOGIT_BYTES = 4


def indexer_logits_bytes(query_tokens: int, context_tokens: int) -> int:
    """Bytes of one CSA layer's logits for a chunk at the end of a context."""
    keys = -(-context_tokens // _CSA_RATIO)
    return query_tokens * -(-keys // _ALIGN_KEYS) * _ALIGN_KEYS * _LOGIT_BYTES


@dataclass(frozen=True)
class RankUse:
    """How one GPU's memory is used, in bytes."""

    stage: int
    memory: int
    budget: int  # the usable share, or the memory that is given
    weights: int
    reserve: int  # kept for activations, graphs and communication
    transient: int  # indexer logits within the budget
    headroom: int  # indexer logits beyond the budget
    shared: int  # cache held without any request
    fixed: int  # cache of every request, whatever its length
    in_flight: int  # cache reserved for the tokens of a chunk
    tokens: int  # cache that grows with the tokens, useful bytes
    lost: int  # cache lost to alignment and to rounding up to whole blocks

    @property
    def cache(self) -> int:
        return self.shared + self.fixed + self.in_flight + self.tokens + self.lost

    @property
    def free(self) -> int:
        """Bytes of the budget left; negative by what is missing."""
        return self.budget - self.weights - self.reserve - self.transient - self.cache


def free_bytes(scenario: Scenario, stage: int, context_tokens: int, concurrency: int) -> int:
    """Bytes left on a rank of a stage, negative by what is missing: the forward function."""
    available = available_bytes(scenario, stage, context_tokens)
    return available - sum(_cache_bytes(scenario, stage, context_tokens, concurrency))


def tightest_free_bytes(scenario: Scenario, context_tokens: int, concurrency: int) -> int:
    """``free_bytes`` of the rank that has the least."""
    stages = range(scenario.layout.pp)
    return min(free_bytes(scenario, stage, context_tokens, concurrency) for stage in stages)


def available_bytes(scenario: Scenario, stage: int, context_tokens: int) -> int:
    """Bytes of a rank that are left for its cache, or given to it."""
    inputs, engine = scenario.inputs, scenario.engine
    if inputs.kv_memory is not None:
        return inputs.kv_memory
    taken = scenario.weight_bytes[stage] + scenario.reserve_bytes(stage, context_tokens)
    left = scenario.budget_bytes - taken - transient_bytes(scenario, context_tokens)
    if engine.shares_rest and left > 0:
        left = int(left * scenario.settings.memory_fraction)
    if inputs.kv_blocks is None:
        return left
    deployment = scenario.deployment(stage, context_tokens)
    units = ceil(inputs.kv_blocks * engine.capacity(deployment, 0).unit_bytes)
    if engine.logits_room != "headroom":
        return units
    return min(left, units + engine.shared_bytes(deployment))  # SGLang's max_total_tokens


def logits_bytes(scenario: Scenario, context_tokens: int) -> int:
    """Indexer logits of one layer's call at most; 0 without indexer."""
    ratio, limit = scenario.indexed_ratio, scenario.settings.logits_limit
    if ratio is None:
        return 0
    if scenario.engine.logits_room == "profiled" and limit is not None:
        return limit
    reach = context_tokens * _CSA_RATIO // ratio
    logits = indexer_logits_bytes(scenario.settings.step_tokens, reach)
    return logits if limit is None else min(logits, limit)


def transient_bytes(scenario: Scenario, context_tokens: int) -> int:
    """Indexer logits, as far as they take of the budget."""
    logits = logits_bytes(scenario, context_tokens)
    if scenario.engine.logits_room == "headroom":
        return max(0, logits - (scenario.gpu.memory_bytes - scenario.budget_bytes))
    return logits


def fits(scenario: Scenario, context_tokens: int, concurrency: int, less: int = 0) -> bool:
    """Whether every rank holds its part in ``less`` memory, within the limit of requests."""
    return (
        within_limit(scenario, concurrency)
        and tightest_free_bytes(scenario, context_tokens, concurrency) >= less
        and not lacking_bytes(scenario, context_tokens)
    )


def lacking_bytes(scenario: Scenario, context_tokens: int) -> int:
    """What a GPU lacks for weights, reserve and the cache given, whatever requests it has."""
    if not scenario.is_sized:
        return 0
    held = (
        weights
        + scenario.reserve_bytes(stage, context_tokens)
        + available_bytes(scenario, stage, context_tokens)
        for stage, weights in enumerate(scenario.weight_bytes)
    )
    return max(0, max(held) - scenario.gpu.memory_bytes)


def within_limit(scenario: Scenario, concurrency: int) -> bool:
    """Whether the engine runs that many requests concurrently, whatever memory there is."""
    limit = scenario.settings.request_limit
    return limit is None or scenario.of_replica(concurrency) <= limit


def max_concurrency(scenario: Scenario, context_tokens: int, less: int = 0) -> int:
    """Max concurrent requests of a context, over all replicas; 0 where not one fits."""
    replicas = scenario.layout.dp
    return replicas * _largest(lambda n: fits(scenario, context_tokens, n * replicas, less))


def max_context(scenario: Scenario, concurrency: int, less: int = 0) -> int:
    """Longest context of the concurrent requests, at most the model's own; 0 where none fits."""
    most = scenario.config.max_context_tokens
    return _largest(lambda tokens: fits(scenario, tokens, concurrency, less), most)


def fewest_gpus(
    scenarios: Sequence[Scenario], context_tokens: int, concurrency: int
) -> Scenario | None:
    """The first of scenarios with more and more GPUs that fits; None where none does.

    Each is asked: an engine that guesses its share of memory may take less of more GPUs.
    """
    return next((each for each in scenarios if fits(each, context_tokens, concurrency)), None)


def use_of(scenario: Scenario, context_tokens: int, concurrency: int) -> RankUse:
    """How the memory of the tightest rank is used."""
    asked = context_tokens, concurrency
    stage = min(range(scenario.layout.pp), key=lambda each: free_bytes(scenario, each, *asked))
    shared, in_flight, requests = _cache_bytes(scenario, stage, *asked)
    count, costs = scenario.of_replica(concurrency), costs_of(scenario, stage, *asked)
    tokens = int(count * context_tokens * sum(cost.marginal_bytes for cost in costs))
    fixed = count * sum(cost.fixed_bytes for cost in costs)
    weights, reserve = scenario.weight_bytes[stage], scenario.reserve_bytes(stage, context_tokens)
    transient = transient_bytes(scenario, context_tokens)
    return RankUse(
        stage=stage,
        memory=scenario.gpu.memory_bytes,
        budget=available_bytes(scenario, stage, context_tokens) + weights + reserve + transient,
        weights=weights,
        reserve=reserve,
        transient=transient,
        headroom=logits_bytes(scenario, context_tokens) - transient,
        shared=shared,
        fixed=fixed,
        in_flight=in_flight,
        tokens=tokens,
        lost=requests - tokens - fixed,
    )


def costs_of(
    scenario: Scenario, stage: int, context_tokens: int, concurrency: int
) -> tuple[PoolCost, ...]:
    """What one request costs on a rank of a stage, pool by pool."""
    count = scenario.of_replica(concurrency)
    return scenario.engine.costs(scenario.deployment(stage, context_tokens, count))


def _cache_bytes(
    scenario: Scenario, stage: int, context_tokens: int, concurrency: int
) -> tuple[int, int, int]:
    """Bytes of cache on a rank: held anyway, reserved for a chunk, held by decoding requests."""
    count, engine = scenario.of_replica(concurrency), scenario.engine
    deployment = scenario.deployment(stage, context_tokens, count)
    decoded = 1 + deployment.draft_tokens
    steady, filling = (
        engine.request_bytes(deployment, context_tokens, in_flight=flight)
        for flight in (decoded, max(deployment.in_flight_tokens, decoded))
    )
    return engine.shared_bytes(deployment), filling - steady, count * steady


def _largest(holds: Callable[[int], bool], most: int | None = None) -> int:
    """Largest number up to ``most`` for which a falling condition holds; 0 if not even for 1."""
    low, high = 0, most + 1 if most else 1  # which does not hold
    while most is None and holds(high):
        low, high = high, high * 2
    return low + bisect_left(range(low + 1, high), True, key=lambda number: not holds(number))


CURVE_TOKENS = (4096, 32_768, 131_072, 1_048_576)


def curve(scenario: Scenario, context_tokens: int) -> list[tuple[int, int]]:
    """Concurrent requests that fit, at some contexts up to the model's limit, or the slots'."""
    is_slot = scenario.engine.unit == "slot"
    limit = context_tokens if is_slot and context_tokens else scenario.config.max_context_tokens
    contexts = sorted({min(tokens, limit) for tokens in CURVE_TOKENS})
    return [(tokens, max_concurrency(scenario, tokens)) for tokens in contexts]


# ---- advice

_CHUNKS = 2048, 1024  # tokens of a prompt in a step: fewer slow prefill
_ENOUGH = 0.98  # of the most requests: a setting that adds less is not worth its line
_MORE_MEMORY = Fraction(95, 100)
_FORMATS = (
    ("indexer_format", "mxfp4", "4-bit indexer keys"),
    ("main_format", "fp8_ds_mla", "FP8 entries"),
    ("window_format", "fp8_ds_mla", "FP8 window entries"),
)
_NUMERIC = {"state", *(name for name, _, _ in _FORMATS)}
"""Inputs of ``_FORMATS``, and the compressor's state: their values change outputs."""


@dataclass(frozen=True)
class Option:
    """One change of the deployment: the options to give (``--in-flight-tokens 2048``), and why."""

    change: str
    reason: str
    freed_bytes: int  # on the tightest GPU
    concurrency: int  # requests of the context that fit with it concurrently
    fits: bool  # whether the question fits with it
    scenario: Scenario  # the deployment with it
    inputs: Mapping[str, Any] = field(default_factory=dict)  # what it replaces of ``Inputs``


class _Change(NamedTuple):
    inputs: Mapping[str, Any]
    words: str
    reason: str


def advise(scenario: Scenario, context_tokens: int, concurrency: int) -> list[Option]:
    """Changes that gain something, those with which most requests fit first.

    Where it does not fit, those that make it fit come first: settings, then more GPUs, then
    serving less. Of settings the cheapest leads for a load that is given, else the largest gain.
    """
    asked = (context_tokens, concurrency)
    free, most = tightest_free_bytes(scenario, *asked), max_concurrency(scenario, context_tokens)

    def option(other: Scenario, taken: Sequence[_Change], reason: str) -> Option:
        freed = tightest_free_bytes(other, *asked) - free
        held, words = max_concurrency(other, context_tokens), " ".join(one.words for one in taken)
        inputs = _inputs(taken)
        reason += "; changes numerics" * (not _NUMERIC.isdisjoint(inputs))
        return Option(words, reason, freed, held, fits(other, *asked), other, inputs)

    changes, options = list(_changes(scenario, asked)), list[Option]()
    chunk = _chunk(scenario.inputs)
    for each in changes:
        with suppress(ConfigError):
            found = option(_apply(scenario, [each]), [each], each.reason)
            milder = [o.concurrency for o in options if [*o.inputs] == [*found.inputs] == [chunk]]
            gains = found.freed_bytes > 0 or found.concurrency > most
            if milder:
                gains = found.concurrency * _ENOUGH > max(milder)
            options += [found] if gains else []
    if len(taken := _combine(scenario, changes, asked)) > 1:
        found = option(_apply(scenario, taken), taken, "together")
        best = max((each.concurrency for each in options), default=most)
        options += [found] if found.concurrency > best else []
    by_gain = sorted(options, key=lambda each: (-each.concurrency, -each.freed_bytes))
    if fits(scenario, *asked):
        return by_gain
    if scenario.inputs.concurrency is None:
        options = list(by_gain)
    if more := _more_gpus(scenario, *asked):
        sizes = {name: getattr(more.layout, name) for name in ("gpus", "tp", "dp")}
        words = " ".join(f"--{name} {size}" for name, size in sizes.items())
        options.append(option(more, [_Change({**sizes, "ep": None}, words, "")], "more GPUs"))
    for name, count, reason in (
        ("concurrency", most, "fewer concurrent requests"),
        ("context", max_context(scenario, concurrency), "shorter requests"),
    ):
        if count:
            held = most if name == "concurrency" else max_concurrency(scenario, count)
            change, less = f"--{name} {count}", {name: count}
            options.append(Option(change, reason, -free, held, True, scenario, less))
    enough = [each for each in options if each.fits]
    return enough + [each for each in by_gain if not each.fits]


def _combine(
    scenario: Scenario, changes: Sequence[_Change], asked: tuple[int, int]
) -> list[_Change]:
    """The changes that hold most requests together, none of them idle.

    In every layout each setting that gains is taken, in place of one of the same input; drafts
    are not given up for it. Of two values of an input that hold nearly as many the first is taken.
    """

    def value(taken: Sequence[_Change]) -> tuple[int, int]:
        with suppress(ConfigError):
            other = _apply(scenario, taken)
            return max_concurrency(other, asked[0]), tightest_free_bytes(other, *asked)
        return -1, 0

    layouts = [[each] for each in changes if "tp" in each.inputs]
    settings = [one for one in changes if "tp" not in one.inputs and "without" not in one.words]
    limits = [one for one in settings if "request_limit" in one.inputs]
    best, most = list[_Change](), -1
    for layout in ([], *layouts):
        taken, reached = layout, value(layout)
        for each in (*settings, *limits):  # a limit may bind once there is memory
            other = [one for one in taken if not one.inputs.keys() & each.inputs.keys()]
            if (found := value([*other, each])) > reached:
                taken, reached = [*other, each], found
        if reached[0] > most:
            best, most = taken, reached[0]
    for each in reversed(best):
        rest = [one for one in best if one is not each]
        same = (one for one in changes if one.inputs.keys() == each.inputs.keys())
        milder = ([one if old is each else old for old in best] for one in same)
        best = next(fewer for fewer in (rest, *milder) if value(fewer)[0] >= _ENOUGH * most)
    return best


def _inputs(taken: Sequence[_Change]) -> dict[str, Any]:
    return {name: value for each in taken for name, value in each.inputs.items()}


def _apply(scenario: Scenario, taken: Sequence[_Change]) -> Scenario:
    (other,) = resolve(replace(fix_layout(scenario), **_inputs(taken)))
    return other


def _more_gpus(scenario: Scenario, context_tokens: int, concurrency: int) -> Scenario | None:
    if scenario.is_sized:
        return None
    inputs = replace(scenario.inputs, gpus=None, tp=None, dp=None, ep=None)
    return fewest_of_any(inputs, context_tokens, concurrency, scenario.layout.gpus + 1)


def fewest_of_any(
    inputs: Inputs, context_tokens: int, concurrency: int, least: int = 1
) -> Scenario | None:
    """The fewest GPUs that do, by tensor parallelism, else as replicas of one GPU each."""
    asked = context_tokens, concurrency
    found = (fewest_gpus(resolve(replace(inputs, tp=tp)), *asked) for tp in (None, 1))
    enough = [each for each in found if each and each.layout.gpus >= least]
    return min(enough, key=lambda each: each.layout.gpus, default=None)


def spread_layers(scenario: Scenario, context_tokens: int, concurrency: int) -> tuple[int, ...]:
    """Layers of every pipeline stage with which the tightest has most memory left.

    A layer moves from the tightest stage to the roomiest as long as that gains.
    """
    asked, best = (context_tokens, concurrency), tuple(len(stage) for stage in scenario.stages)
    while True:
        free = [free_bytes(scenario, stage, *asked) for stage in range(len(best))]
        tight, roomy = free.index(min(free)), free.index(max(free))
        sizes = list(best)
        sizes[tight], sizes[roomy] = sizes[tight] - 1, sizes[roomy] + 1
        try:
            (other,) = resolve(replace(fix_layout(scenario), stage_layers=tuple(sizes)))
            gains = tightest_free_bytes(other, *asked) > min(free)
        except ConfigError:  # the engine does not serve such stages
            gains = False
        if not gains or not sizes[tight]:
            return best
        best, scenario = tuple(sizes), other


def _changes(scenario: Scenario, asked: tuple[int, int]) -> Iterator[_Change]:
    """Settings that may help, the cheapest first."""
    inputs, settings, engine = scenario.inputs, scenario.settings, scenario.engine
    chunk = _chunk(inputs)
    for tokens in (tokens for tokens in _CHUNKS if tokens < settings.in_flight_tokens):
        change = f"{_word(scenario, chunk)} {tokens}"
        yield _Change({chunk: tokens}, change, "smaller chunks of prompts")
    if settings.window_slots == "kept":
        change = "SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS=1"
        yield _Change({"window_slots": "freed"}, change, "frees window slots out of the window")
    flag = _word(scenario, "request_limit")
    is_fixed = engine.family.flags and flag == "--request-limit"  # ds4's one session
    if settings.request_limit and not is_fixed:  # as it is given: SGLang's is of all replicas
        limit = inputs.request_limit or settings.assumed["request_limit"].value
        half = max(limit // 2, 1)  # half of one is that one, which gains nothing
        fewer = "half as many, less allocated at start-up"
        divides = engine.unit == "slot" and not inputs.unified_slots
        for count, why in ((2 * limit, "twice as many concurrent requests"), (half, fewer)):
            whole = f" {_word(scenario, SLOTTED)} {count * scenario.context_tokens}"
            yield _Change({"request_limit": count}, f"{flag} {count}{whole * divides}", why)
    if not scenario.is_sized:  # which is this layout's
        yield from _layout_changes(scenario, asked)
    state, block = inputs.state == "fp32", inputs.block_tokens is not None
    drafts = bool(inputs.draft_layers or inputs.draft_tokens)
    for holds, new, change, why in (
        (state, {"state": "online"}, "--state online", "HCA keeps a running softmax"),
        (block, {"block_tokens": None}, "without --block-tokens", "the engine's own block size"),
        (drafts, {"draft_layers": 0, "draft_tokens": 0}, "without drafts", "no speculation"),
    ):
        if holds:
            yield _Change(new, change, why)
    for place, name, reason in _FORMATS:
        yield _Change({place: name}, f"--{place.replace('_', '-')} {name}", reason)
    leaves_room = engine.logits_room == "headroom"  # for activations, too: no less of it
    if settings.memory_fraction < _MORE_MEMORY and not leaves_room:
        change = f"{_word(scenario, 'memory_fraction')} {float(_MORE_MEMORY):g}"
        yield _Change({"memory_fraction": _MORE_MEMORY}, change, "less headroom")


def _layout_changes(scenario: Scenario, asked: tuple[int, int]) -> Iterator[_Change]:
    layout, variable = scenario.layout, _word(scenario, "stage_layers")
    if layout.pp > 1 and not variable.startswith("-"):
        sizes = spread_layers(scenario, *asked)
        change = f"{variable}={','.join(map(str, sizes))}"
        yield _Change({"stage_layers": sizes}, change, "layers where memory is left")
    ranks = layout.tp * layout.dp
    for tp in (tp for tp in range(1, layout.tp) if ranks % tp == 0):
        copies = f"{'fewer' if tp > 1 else 'no'} copies of the KV cache"
        replicas = {"tp": tp, "dp": ranks // tp, "ep": None}
        yield _Change(replicas, f"--tp {tp} --dp {ranks // tp}", copies)


def _word(scenario: Scenario, name: str) -> str:
    return flag_for(scenario.engine.family.name, name.replace("_", "-"))


def _chunk(inputs: Inputs) -> str:
    return "in_flight_tokens" if inputs.in_flight_tokens else "step_tokens"
