"""What fits: one forward function of context and concurrency, and searches on it.

The model of a step: one request fills its context with a chunk of ``in_flight_tokens``, all others
decode. So the reserve for tokens in flight is taken once per replica, and the indexer's logits of
that chunk are the transient peak: a CSA layer scores every query token of a chunk against every
indexer key it may see, in float32, before the top k are taken. Engines cut the chunk where its
logits would be too large, and allocate them in different places (``LogitsRoom``).
Source: sglang#39095, vllm#45663; vLLM 0.20 to 0.33, SGLang 0.5.12 to 0.5.23.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from dsv4kv.budget.scenario import Scenario
from dsv4kv.engines.contract import PoolCost

_CSA_RATIO = 4
_ALIGN_KEYS = 256
_LOGIT_BYTES = 4


def indexer_logits_bytes(query_tokens: int, context_tokens: int) -> int:
    """Bytes of one CSA layer's logits for a chunk at the end of a context."""
    keys = -(-context_tokens // _CSA_RATIO)
    return query_tokens * -(-keys // _ALIGN_KEYS) * _ALIGN_KEYS * _LOGIT_BYTES


@dataclass(frozen=True)
class RankUse:
    """How one GPU's memory is used, in bytes.

    Attributes:
        budget: The usable share, or the memory that is given.
        reserve: Kept for activations, graphs and communication.
        transient: Indexer logits within the budget.
        headroom: Indexer logits beyond the budget.
        shared: Cache held without any request.
        fixed: Cache of every request, whatever its length.
        in_flight: Cache reserved for the tokens of a chunk.
        tokens: Cache that grows with the tokens, useful bytes.
        lost: Cache lost to alignment and to rounding up to whole blocks.
    """

    stage: int
    memory: int
    budget: int
    weights: int
    reserve: int
    transient: int
    headroom: int
    shared: int
    fixed: int
    in_flight: int
    tokens: int
    lost: int

    @property
    def cache(self) -> int:
        """Bytes of cache."""
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
    inputs = scenario.inputs
    if inputs.kv_memory is not None:
        return inputs.kv_memory
    taken = scenario.weight_bytes[stage] + scenario.reserve_bytes(stage, context_tokens)
    left = scenario.budget_bytes - taken - transient_bytes(scenario, context_tokens)
    if scenario.engine.shares_rest:
        left = int(left * scenario.settings.memory_fraction)
    if inputs.kv_blocks is None:
        return left
    engine, deployment = scenario.engine, scenario.deployment(stage, context_tokens)
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
    return limit is None or ceil(concurrency / scenario.layout.dp) <= limit


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
    stage = min(
        range(scenario.layout.pp),
        key=lambda stage: free_bytes(scenario, stage, context_tokens, concurrency),
    )
    shared, in_flight, requests = _cache_bytes(scenario, stage, context_tokens, concurrency)
    count = ceil(concurrency / scenario.layout.dp)
    costs = costs_of(scenario, stage, context_tokens, concurrency)
    tokens = int(count * context_tokens * sum(cost.marginal_bytes for cost in costs))
    fixed = count * sum(cost.fixed_bytes for cost in costs)
    weights, reserve = scenario.weight_bytes[stage], scenario.reserve_bytes(stage, context_tokens)
    transient = transient_bytes(scenario, context_tokens)
    available = available_bytes(scenario, stage, context_tokens)
    return RankUse(
        stage=stage,
        memory=scenario.gpu.memory_bytes,
        budget=available + weights + reserve + transient,
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
    count = ceil(concurrency / scenario.layout.dp)
    return scenario.engine.costs(scenario.deployment(stage, context_tokens, count))


def _cache_bytes(
    scenario: Scenario, stage: int, context_tokens: int, concurrency: int
) -> tuple[int, int, int]:
    """Bytes of cache on a rank: held anyway, reserved for a chunk, held by decoding requests."""
    count = ceil(concurrency / scenario.layout.dp)
    engine, deployment = scenario.engine, scenario.deployment(stage, context_tokens, count)
    decoded = 1 + deployment.draft_tokens
    chunk = max(deployment.in_flight_tokens, decoded)
    steady, filling = (
        engine.request_bytes(deployment, context_tokens, in_flight=flight)
        for flight in (decoded, chunk)
    )
    return engine.shared_bytes(deployment), filling - steady, count * steady


def _largest(holds: Callable[[int], bool], most: int | None = None) -> int:
    """Largest number up to ``most`` for which a falling condition holds; 0 if not even for 1."""
    low, high = 0, 1
    while (most is None or high < most) and holds(high):
        low, high = high, high * 2
    if most is not None and high >= most:
        if holds(most):
            return most
        high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


CURVE_TOKENS = (4096, 32_768, 131_072, 1_048_576)


def curve(scenario: Scenario) -> list[tuple[int, int]]:
    """Concurrent requests that fit, at some contexts up to the model's limit."""
    limit = scenario.config.max_context_tokens
    contexts = sorted({min(tokens, limit) for tokens in CURVE_TOKENS})
    return [(tokens, max_concurrency(scenario, tokens)) for tokens in contexts]
