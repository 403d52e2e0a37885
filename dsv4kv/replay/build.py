"""From a configuration to a scheduler that is ready to run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from dsv4kv.config.replay import ArrivalSection, ReplayConfig
from dsv4kv.core.arrivals import Source
from dsv4kv.core.clock import VirtualClock
from dsv4kv.core.losses import ReuseTally
from dsv4kv.core.outcome import Outcome
from dsv4kv.core.policies import make_policy
from dsv4kv.core.prompts import Below, EnginePrompts, IdealCache, IdealPrompts, Prompts
from dsv4kv.core.scheduler import Drafts, Limits, Scheduler
from dsv4kv.core.tree import PrefixTree
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.processes import without_collector
from dsv4kv.replay.clock.steps import ModelTimes, WeightModel, build_weights, open_times
from dsv4kv.replay.memory import MemoryPlan, arch_of, check_fit, plan_memory
from dsv4kv.replay.requests import KeysOf, keys_on, open_arrivals, shared_tokens
from dsv4kv.replay.rules import Pool, open_cache, open_tally
from dsv4kv.replay.server import by_server, holds_chunks
from dsv4kv.replay.tiers import SharedTiers, Tiers, build_tiers
from dsv4kv.traces import ReadOptions, place_of, read_trace
from dsv4kv.traces.paths import PathTable, collect_paths, number_prompts
from dsv4kv.traces.request import IdRuns, Request, list_runs
from dsv4kv.traces.summary import check_histories
from dsv4kv.traces.synth import synthesize


def read_options(workload: ArrivalSection) -> ReadOptions:
    """How the trace is read: with closed arrivals its times do not count."""
    return ReadOptions(stagger_s=workload.stagger_s, any_order=workload.arrivals == "closed")


def check_ids(requests: Sequence[Request], workload: ArrivalSection) -> None:
    """Refuse block ids that contradict each other; raises ``TraceError``."""
    if not any(len(request.prefix_hashes) for request in requests):
        return

    def name(number: int) -> str:
        if workload.trace is None:
            return f"request {number + 1:,} of the synthetic workload"
        return place_of(
            workload.skip + number, workload.trace, workload.trace_format, read_options(workload)
        )

    check_histories(_collect(requests), name)


_LAST: list[tuple[Sequence[Request], PathTable]] = []


def _collect(requests: Sequence[Request]) -> PathTable:
    if not _LAST or _LAST[0][0] is not requests:
        _LAST[:] = [(requests, collect_paths(requests))]
    return _LAST[0][1]


def forget_paths() -> None:
    _LAST.clear()


def read_requests(config: ReplayConfig) -> list[Request]:
    """The requests of a configuration, all of them; raises ``TraceError``."""
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


@dataclass(frozen=True)
class Parts:
    """What all replays of a configuration and a trace have in common; nothing of it changes."""

    config: ReplayConfig  # with what its server says
    memory: MemoryPlan
    times: ModelTimes  # how long steps take
    weights: WeightModel
    shared_tokens: int  # tokens of the blocks that prompts share
    # what an engine's cache is given; None for the toolkit's own, or without reuse
    engine: Pool | None
    keys: KeysOf  # the blocks of every prompt that can be shared


def find_parts(config: ReplayConfig, requests: Sequence[Request]) -> Parts:
    config = by_server(config)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    times = open_times(config, memory.model, memory.schemas, weights)
    trace_tokens = next((r.hash_block_tokens for r in requests if r.hash_block_tokens), 0)
    engine = _find_pool(config, memory, requests)
    tokens = memory.block_tokens if engine else shared_tokens(trace_tokens, memory.block_tokens)
    numbered = engine.numbered if engine else None
    keys = keys_on(tokens) if numbered is None else lambda served: numbered.path(served.number)
    return Parts(config, memory, times, weights, tokens, engine, keys)


def _find_pool(
    config: ReplayConfig, memory: MemoryPlan, requests: Sequence[Request]
) -> Pool | None:
    """The cache of ``prefix.rule``; None for the toolkit's own, or without reuse."""
    if not memory.rule.engine or not config.prefix.reuse:
        return None
    size, speculative = memory.block_tokens, config.scheduler.speculative
    named = any(len(request.prefix_hashes) for request in requests)
    table = _collect(requests) if named else collect_paths(_name_apart(requests, size))
    drafts = memory.drafts
    accepted = (speculative.acceptance**n for n in range(1, speculative.draft_tokens + 1))
    return Pool(
        table,
        memory.num_blocks * size,
        size,
        memory.model,
        config.scheduler.step_tokens,
        drafts,
        arch_of(config.cost),
        windows=memory.num_checkpoints,
        holds_chunks=holds_chunks(config.server),
        tokens_per_step=1 + sum(accepted),
        numbered=number_prompts(table, size, drafts.key_tokens),
        step_tokens=1 + speculative.draft_tokens,
        slots=config.scheduler.max_requests if config.scheduler.changed("max_requests") else 0,
    )


def _name_apart(requests: Sequence[Request], block_tokens: int) -> Iterator[Request]:
    """Prompts whose lengths alone are known, as prompts that share nothing."""
    first = 0
    for request in requests:
        count = -(-request.input_tokens // block_tokens)
        ids = IdRuns(np.array([first]), np.array([count]))
        yield replace(request, prefix_hashes=ids, hash_block_tokens=block_tokens)
        first += count


@dataclass
class Replay:
    """A replay that is ready to run, and its inputs."""

    parts: Parts  # what it has in common with others
    requests: Sequence[Request]
    scheduler: Scheduler  # runs it
    tiers: Tiers | None = None  # what is below the GPUs; None where nothing is

    def __post_init__(self) -> None:
        parts = self.parts
        self.config, self.memory, self.times = parts.config, parts.memory, parts.times
        self.outcome, self.prompts = self.scheduler.outcome, self.scheduler.prompts


def build_replay(
    config: ReplayConfig,  # what is asked for
    requests: Sequence[Request],  # the trace
    *,
    # what this replay has in common with others; found where it is not given
    parts: Parts | None = None,
    source: Source | None = None,  # where its requests come from, if not from the trace
    below: Below | None = None,  # what is below its cache instead of tiers
    shared: SharedTiers | None = None,  # tiers that it has in common with others
) -> Replay:
    """Build everything a replay needs."""
    parts = parts or find_parts(config, requests)
    config, memory = parts.config, parts.memory
    check_fit(config.cost, memory, parts.weights)
    times = parts.times
    clock, ranks = VirtualClock(times.timer), times.layout.dp
    step_tokens = config.scheduler.step_tokens
    tiers = None
    reuse = any(request.hash_block_tokens for request in requests)
    if reuse:
        compute_s = partial(times.timer.prompt_s, chunk_tokens=step_tokens // ranks)
        tiers = build_tiers(config, memory, parts.shared_tokens, clock, compute_s, shared)
    below = below or tiers
    prompts: Prompts
    if parts.engine:
        rule, pool, places = memory.rule, parts.engine, tiers.stored.places if tiers else None
        cache, tally = open_cache(rule, pool), open_tally(rule, pool)
        prompts = EnginePrompts(cache, tally, below, places, windows=rule.windows)
    else:
        prompts = _own_prompts(config, memory, parts.shared_tokens, below, reuse=reuse)
    speculative = config.scheduler.speculative
    scheduler = Scheduler(
        source or open_arrivals(requests, config.workload, parts.keys, times.client_s),
        _find_limits(config, memory, ranks),
        prompts,
        Drafts(speculative.draft_tokens, speculative.acceptance, config.measure.seed),
        clock,
        Outcome(config.measure.points, memory.block_tokens, times.client_s),
    )
    return Replay(parts, requests, scheduler, tiers)


def _find_limits(config: ReplayConfig, memory: MemoryPlan, ranks: int) -> Limits:
    scheduling, policy = config.scheduler, memory.rule.policy
    alone = policy.prompts_alone if scheduling.prompts is None else scheduling.prompts == "alone"
    paused = None if policy.prompts_alone else int(memory.num_blocks * scheduling.paused_share)
    return Limits(
        chunk_tokens=scheduling.step_tokens // ranks,
        slots=max(1, scheduling.max_requests // ranks),
        block_tokens=memory.block_tokens,
        ratio=memory.group.ratio,
        paused_blocks=paused,
        max_context_tokens=memory.max_context_tokens,
        defer=config.prefix.defer and not policy.finds_scheduled,
        finds_scheduled=policy.finds_scheduled and not scheduling.delay_prompts,
        ranks=ranks,
        alone=alone,
        delay=scheduling.delay_prompts,
    )


def _own_prompts(
    config: ReplayConfig, memory: MemoryPlan, tokens: int, below: Below | None, *, reuse: bool
) -> Prompts:
    if memory.strategy.period_tokens % tokens:
        raise ConfigError(
            f"prefix.strategy is {memory.strategy.name}: prompts share blocks of {tokens:,} "
            "tokens, and a checkpoint inside one is never found again: take a multiple of "
            f"{tokens:,}."
        )
    per_shared = tokens // memory.block_tokens
    tree = None
    if reuse and config.prefix.reuse:
        tree = PrefixTree(make_policy(config.prefix.policy))
    return IdealPrompts(
        IdealCache(memory.num_blocks, per_shared, tree, memory.num_checkpoints),
        ReuseTally(list_runs, tokens),
        below,
        memory.strategy,
        memory.checkpoint_bytes,
        per_shared * memory.beside_bytes,
    )
