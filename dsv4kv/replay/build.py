"""From a configuration to a scheduler that is ready to run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from dsv4kv.config.replay import ArrivalSection, ReplayConfig
from dsv4kv.core.clock import VirtualClock
from dsv4kv.core.outcome import Outcome, ReuseTally
from dsv4kv.core.policies import make_policy
from dsv4kv.core.prompts import Below, EnginePrompts, IdealCache, IdealPrompts, Places, Prompts
from dsv4kv.core.scheduler import Drafts, Limits, Scheduler
from dsv4kv.core.served import Arrivals, Served, Source
from dsv4kv.core.tree import PrefixTree
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.processes import without_collector
from dsv4kv.replay.clock.steps import ModelTimes, WeightModel, build_weights, open_times
from dsv4kv.replay.memory import MemoryPlan, arch_of, check_fit, plan_memory
from dsv4kv.replay.rules import Pool, open_cache, open_tally
from dsv4kv.replay.server import by_server
from dsv4kv.replay.tiers import SharedTiers, Tiers, build_tiers
from dsv4kv.traces import ReadOptions, place_of, read_trace
from dsv4kv.traces.paths import PathTable, collect_paths, number_prompts
from dsv4kv.traces.request import IdRuns, Request, list_runs, signed
from dsv4kv.traces.summary import check_histories
from dsv4kv.traces.synth import synthesize

KeysOf = Callable[[Served], list[int]]  # the whole shared blocks of a request


def shared_tokens(trace_block_tokens: int, cache_block_tokens: int) -> int:
    """Tokens of a shared block: the larger of a trace's block and a cache's."""
    if not trace_block_tokens:
        return cache_block_tokens
    small, large = sorted((trace_block_tokens, cache_block_tokens))
    if large % small:
        raise ConfigError(
            f"cache.block_tokens is {cache_block_tokens} and an id of the trace covers "
            f"{trace_block_tokens} tokens: neither divides the other, so no whole block could "
            f"ever be found again; take a multiple of 128 that divides {trace_block_tokens} or "
            "is a multiple of it."
        )
    return large


def keys_on(tokens: int) -> KeysOf:
    """The keys of prompts in shared blocks of ``tokens``: the last id of every whole one."""

    def keys(served: Served) -> list[int]:
        ids = served.ids
        if not served.id_tokens or not len(ids):
            return []
        step = max(1, tokens // served.id_tokens)
        known = ids.array().tolist() if isinstance(ids, IdRuns) else signed(ids).tolist()
        return known[step - 1 :: step][: served.input_tokens // tokens]

    return keys


def begin_serving(
    number: int, request: Request, arrival_s: float, keys: KeysOf, longest_output: int | None
) -> Served:
    """A request as it comes; outputs are cut to ``longest_output`` tokens."""
    output, tokens = request.output_tokens, request.input_tokens
    output = output if longest_output is None else min(output, longest_output)
    ids = request.prefix_hashes, request.hash_block_tokens
    return Served(number, arrival_s, tokens, output, keys, *ids)


def open_arrivals(
    requests: Sequence[Request], section: ArrivalSection, keys: KeysOf, client_s: float = 0.0
) -> Arrivals:
    """Requests as they come; closed ones ``client_s`` after the answer that they waited for."""
    longest, closed = section.max_output_tokens, section.arrivals == "closed"
    times_s = list[float]()
    if not closed:
        times_s = [(r.arrival_s - requests[0].arrival_s) / section.speed for r in requests]

    def begin(number: int, arrival_s: float) -> Served:
        return begin_serving(number, requests[number], arrival_s, keys, longest)

    return Arrivals(begin, len(requests), times_s, section.concurrency if closed else 0, client_s)


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
    drafts, engine = memory.drafts, config.server.engine or ""
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
        holds_chunks=bool(engine) and find_engine(engine).holds_chunks,
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
    config, memory, times = parts.config, parts.memory, parts.times
    check_fit(config.cost, memory, parts.weights)
    clock, ranks = VirtualClock(times.timer), times.layout.dp
    scheduling, policy = config.scheduler, memory.rule.policy
    chunk_tokens = scheduling.step_tokens // ranks
    tiers = None
    reuse = any(request.hash_block_tokens for request in requests)
    if reuse:
        compute_s = partial(times.timer.prompt_s, chunk_tokens=chunk_tokens)
        tiers = build_tiers(config, memory, parts.shared_tokens, clock, compute_s, shared)
    places = tiers.stored.places if tiers else None
    prompts = _open_prompts(parts, below or tiers, places, reuse=reuse)
    alone = policy.prompts_alone if scheduling.prompts is None else scheduling.prompts == "alone"
    paused = None if policy.prompts_alone else int(memory.num_blocks * scheduling.paused_share)
    limits = Limits(
        chunk_tokens=chunk_tokens,
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
    drafts, seed = scheduling.speculative, config.measure.seed
    scheduler = Scheduler(
        source or open_arrivals(requests, config.workload, parts.keys, times.client_s),
        limits,
        prompts,
        Drafts(drafts.draft_tokens, drafts.acceptance, seed),
        clock,
        Outcome(config.measure.points, memory.block_tokens, times.client_s),
    )
    return Replay(parts, requests, scheduler, tiers)


def _open_prompts(
    parts: Parts, below: Below | None, places: Places | None, *, reuse: bool
) -> Prompts:
    config, memory, tokens = parts.config, parts.memory, parts.shared_tokens
    if parts.engine:
        rule, pool = memory.rule, parts.engine
        cache, tally = open_cache(rule, pool), open_tally(rule, pool)
        return EnginePrompts(cache, tally, below, places, windows=rule.windows)
    if memory.strategy.period_tokens % tokens:
        raise ConfigError(
            f"prefix.strategy is {memory.strategy.name}: prompts share blocks of {tokens:,} "
            "tokens, and a checkpoint inside one is never found again: take a multiple of "
            f"{tokens:,}."
        )
    per_shared, prefix = tokens // memory.block_tokens, config.prefix
    tree = PrefixTree(make_policy(prefix.policy)) if reuse and prefix.reuse else None
    return IdealPrompts(
        IdealCache(memory.num_blocks, per_shared, tree, memory.num_checkpoints),
        ReuseTally(list_runs, tokens),
        below,
        memory.strategy,
        memory.checkpoint_bytes,
        per_shared * memory.beside_bytes,
    )
