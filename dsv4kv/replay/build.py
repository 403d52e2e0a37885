"""From a configuration to a scheduler that is ready to run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

from dsv4kv.clock.sources import find_layout, open_times
from dsv4kv.clock.steps import StepTimes
from dsv4kv.clock.weights import WeightModel, build_weights
from dsv4kv.config.replay import ArrivalSection, ReplayConfig
from dsv4kv.core.clock import Rates, Tables, VirtualClock
from dsv4kv.core.contract import NOTHING_BELOW, Below, Ledger, Source
from dsv4kv.core.scheduler import Drafts, Limits, Observer, Scheduler
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.mrc.strategies import Strategy
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.policies import make_policy
from dsv4kv.processes import without_collector
from dsv4kv.replay.costs import fill_tables
from dsv4kv.replay.engine import EnginePaths, EnginePrompts, build_engine, find_paths
from dsv4kv.replay.memory import MemoryPlan, check_fit, plan_memory
from dsv4kv.replay.outcome import Outcome
from dsv4kv.replay.prompts import BlockLedger, CheckpointStore, PromptCache, Sizes
from dsv4kv.replay.rates import find_rates
from dsv4kv.replay.requests import Arrivals
from dsv4kv.replay.server import by_server
from dsv4kv.replay.sharing import KeysOf, keys_in, keys_on, shared_tokens
from dsv4kv.replay.stored import leave_nothing
from dsv4kv.replay.tiers import SharedTiers, Tiers, build_tiers
from dsv4kv.traces import ReadOptions, read_trace
from dsv4kv.traces.collect import check_histories, collect_paths, place_of
from dsv4kv.traces.request import Request
from dsv4kv.traces.synth import synthesize


def read_options(workload: ArrivalSection) -> ReadOptions:
    """How the trace is read: with closed arrivals its times do not count."""
    return ReadOptions(stagger_s=workload.stagger_s, any_order=workload.arrivals == "closed")


def check_ids(requests: Sequence[Request], workload: ArrivalSection) -> None:
    """Refuse block ids that contradict each other.

    Raises:
        TraceError: The sentence names both requests, by file and line where there is a file.
    """
    if not any(len(request.prefix_hashes) for request in requests):
        return

    def name(number: int) -> str:
        if workload.trace is None:
            return f"request {number + 1:,} of the synthetic workload"
        return place_of(
            workload.skip + number,
            workload.trace,
            workload.trace_format,
            read_options(workload),
        )

    check_histories(collect_paths(requests), name)


@dataclass(frozen=True)
class Parts:
    """What all replays of a configuration and a trace have in common; nothing of it changes.

    Attributes:
        config: With what its server says.
        memory: How the memory is divided.
        rates: How fast work is done, by source stated; None by another.
        times: How long steps take by another source; None by stated.
        weights: What weights cost.
        shared_tokens: Tokens of the blocks that prompts share.
        engine: What an engine's cache is given of the trace; None for the toolkit's own.
        keys: The blocks of every prompt that can be shared.
        longest_tokens: How long a request gets.
    """

    config: ReplayConfig
    memory: MemoryPlan
    rates: Rates | None
    times: StepTimes | None
    weights: WeightModel
    shared_tokens: int
    engine: EnginePaths | None
    keys: KeysOf
    longest_tokens: int

    @cached_property
    def tables(self) -> Tables:
        """The work of a step; they are large, so they are filled when they are needed."""
        memory = self.memory
        tables = fill_tables(memory.model, memory.schemas, self.longest_tokens)
        return tables.weighed(self.weights)


def find_parts(config: ReplayConfig, requests: Sequence[Request]) -> Parts:
    """Work out what does not change; raises as ``build_replay`` does."""
    config = by_server(config)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    rates, times = _build_timing(config, memory, weights)
    trace_tokens = next((r.hash_block_tokens for r in requests if r.hash_block_tokens), 0)
    engine = find_paths(config, memory, requests)
    tokens = memory.block_tokens if engine else shared_tokens(trace_tokens, memory.block_tokens)
    longest = min(memory.max_context_tokens, max(r.total_tokens for r in requests))
    return Parts(
        config,
        memory,
        rates,
        times,
        weights,
        tokens,
        engine,
        keys_in(engine.paths) if engine else keys_on(tokens),
        longest,
    )


@dataclass(frozen=True)
class Wiring:
    """What makes a replay one of several; left out, it is alone.

    Attributes:
        parts: What all have in common.
        source: Where its requests come from.
        observe: Who watches, in front of the outcome.
        cover: What is put in front of the tiers below its cache.
        shared: Tiers that it has in common with others.
    """

    parts: Parts | None = None
    source: Source | None = None
    observe: Callable[[Outcome], Observer] | None = None
    cover: Callable[[Below], Below] | None = None
    shared: SharedTiers | None = None


ALONE = Wiring()


@dataclass(frozen=True)
class Replay:
    """A replay that is ready to run, and what it was made of.

    Attributes:
        config: What was asked for.
        memory: How the memory is divided.
        rates: How fast work is done, by source stated; None by another.
        times: How long steps take by another source; None by stated.
        weights: What weights cost.
        requests: The trace.
        shared_tokens: Tokens of the blocks that prompts share.
        keys: The blocks of every prompt that can be shared.
        outcome: Collects what happens.
        scheduler: Runs it.
        prompts: What was reused.
        tiers: What is below the GPUs; None where nothing is.
    """

    config: ReplayConfig
    memory: MemoryPlan
    rates: Rates | None
    times: StepTimes | None
    weights: WeightModel
    requests: Sequence[Request]
    shared_tokens: int
    keys: KeysOf
    outcome: Outcome
    scheduler: Scheduler
    prompts: PromptCache | EnginePrompts
    tiers: Tiers | None = None


def read_requests(config: ReplayConfig) -> list[Request]:
    """The requests of a configuration, all of them.

    Raises:
        TraceError: The trace cannot be read, its block ids contradict each other, or nothing is
            left of it.
    """
    workload = config.workload
    if workload.trace is None:
        requests = synthesize(workload.synthetic, config.measure.seed)
    else:
        options = read_options(workload)
        requests = read_trace(workload.trace, workload.trace_format, options)
    stop = None if workload.limit is None else workload.skip + workload.limit
    with without_collector():
        found = list(islice(requests, workload.skip, stop))
    if not found:
        source = workload.trace or "the synthetic workload"
        raise TraceError(
            f"{source}: no request is left after skipping {workload.skip}: lower workload.skip."
        )
    check_ids(found, workload)
    return found


def build_replay(
    config: ReplayConfig, requests: Sequence[Request], wiring: Wiring = ALONE
) -> Replay:
    """Build everything a replay needs.

    Raises:
        DoesNotFit: Weights and cache are more than the GPUs hold.
        ConfigError: The configuration cannot be built or does not fit the trace.
        TraceError: The clock of the trace runs backwards.
        RecordError: The record that the bandwidth is to be taken from cannot be read.
    """
    parts = wiring.parts or find_parts(config, requests)
    config = parts.config
    memory, tokens = parts.memory, parts.shared_tokens
    engine = build_engine(config, memory, parts.engine) if parts.engine else None
    reuse = any(request.hash_block_tokens for request in requests)
    client_s = parts.times.client_s if parts.times else 0.0
    outcome = Outcome(config.measure.points, memory.block_tokens, client_s)
    checkpoints = CheckpointStore(memory.num_checkpoints)
    check_fit(config.cost, memory, parts.weights)
    scheduling = config.scheduler
    clock = VirtualClock(parts.tables, parts.rates, parts.times.timer if parts.times else None)
    ranks = find_layout(config.cost, memory.model).dp if parts.times else 1
    compute_s = partial(clock.prompt_s, chunk_tokens=scheduling.step_tokens // ranks)
    tiers = None
    if reuse:
        tiers = build_tiers(config, memory, tokens, clock, compute_s, wiring.shared)
    below: Below = tiers or NOTHING_BELOW
    if wiring.cover:
        below = wiring.cover(below)
    ledger: Ledger
    prompts: PromptCache | EnginePrompts
    if engine:
        ledger, prompts = engine.ledger, engine.prompts
        if below is not NOTHING_BELOW:
            engine.prompts.stand_on(below, tiers.stored.places if tiers else leave_nothing)
    else:
        ledger, prompts = _build_prompts(config, memory, tokens, checkpoints, below, reuse=reuse)
    drafts = Drafts(
        scheduling.speculative.draft_tokens,
        scheduling.speculative.acceptance,
        config.measure.seed,
    )
    rule, paused = find_rule(config.prefix.rule), memory.num_blocks * scheduling.paused_share
    limits = Limits(
        step_tokens=scheduling.step_tokens,
        max_requests=scheduling.max_requests,
        block_tokens=memory.block_tokens,
        ratio=memory.group.ratio,
        paused_blocks=None if rule.policy.prompts_alone else int(paused),
        max_context_tokens=memory.max_context_tokens,
        defer=config.prefix.defer and not rule.policy.finds_scheduled,
        finds_scheduled=rule.policy.finds_scheduled and not scheduling.delay_prompts,
        ranks=ranks,
        alone=_prompts_alone(config),
        delay=scheduling.delay_prompts,
    )
    scheduler = Scheduler(
        wiring.source or Arrivals(requests, config.workload, parts.keys, client_s),
        limits,
        ledger,
        prompts,
        drafts,
        clock,
        wiring.observe(outcome) if wiring.observe else outcome,
    )
    return Replay(
        config,
        memory,
        parts.rates,
        parts.times,
        parts.weights,
        requests,
        tokens,
        parts.keys,
        outcome,
        scheduler,
        prompts,
        tiers,
    )


def _build_timing(
    config: ReplayConfig, memory: MemoryPlan, weights: WeightModel
) -> tuple[Rates | None, StepTimes | None]:
    """Rates by source stated; by another source, step times."""
    if config.cost.clock == "stated":
        return find_rates(config.cost), None
    return None, open_times(config, memory.model, memory.schemas, weights)


def _prompts_alone(config: ReplayConfig) -> bool:
    """Whether steps with prompts leave decoding requests out: where nothing is said, in SGLang."""
    chosen = config.scheduler.prompts
    alone = find_rule(config.prefix.rule).policy.prompts_alone
    return alone if chosen is None else chosen == "alone"


def _build_prompts(
    config: ReplayConfig,
    memory: MemoryPlan,
    tokens: int,
    checkpoints: CheckpointStore,
    below: Below,
    *,
    reuse: bool,
) -> tuple[BlockLedger, PromptCache]:
    """The prefix index, if there is anything to reuse, and the blocks behind it."""
    checkpoints.below = below
    per_shared = tokens // memory.block_tokens
    index = None
    if reuse and config.prefix.reuse:
        policy = make_policy(config.prefix.policy, max(1, memory.num_blocks // per_shared))
        index = BlockHashIndex(policy)
    _check_period(memory.strategy, tokens)
    ledger = BlockLedger(memory.num_blocks, per_shared, index, checkpoints, below)
    sizes = Sizes(tokens, memory.checkpoint_bytes, per_shared * memory.beside_bytes)
    return ledger, PromptCache(index, memory.strategy, ledger, checkpoints, sizes, below)


def _check_period(strategy: Strategy, tokens: int) -> None:
    """Refuse checkpoints inside shared blocks: they would be written and never found."""
    if strategy.period_tokens % tokens:
        raise ConfigError(
            f"prefix.strategy is {strategy.name}: prompts share blocks of {tokens:,} tokens, and "
            f"a checkpoint inside one is never found again: take a multiple of {tokens:,}."
        )
