"""A whole run: every case of a sweep, and the record of it."""

import gc
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dsv4kv.config.load import Loaded, Point
from dsv4kv.config.replay import ReplayConfig, TierSection
from dsv4kv.core.clock import VirtualClock
from dsv4kv.core.linear import COUNTS
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import Dsv4kvError, TraceError
from dsv4kv.measure.environment import capture_environment
from dsv4kv.processes import without_collector
from dsv4kv.replay.build import Replay, build_replay, read_requests
from dsv4kv.replay.clock.steps import StepTimes
from dsv4kv.replay.tier import Tier
from dsv4kv.replay.tiers import Tiers
from dsv4kv.runs.points import HERE, Sweep, run_points
from dsv4kv.runs.replay import (
    Constant,
    ReplayPool,
    ReplayResult,
    ReplaySeries,
    ReplayTier,
    ReplayTiers,
    ReplayWork,
    Reuse,
)
from dsv4kv.runs.schema import (
    NOTHING_CHECKED,
    CacheSummary,
    Case,
    Environment,
    Latency,
    RunRecord,
    Totals,
)
from dsv4kv.runs.store import new_run_id
from dsv4kv.traces import resolve_trace, trace_sha256
from dsv4kv.traces.request import Request

_NS = 1e9


def describe_replay(replay: Replay) -> ReplayResult:
    """Everything that was found."""
    memory, outcome, scheduler = replay.memory, replay.outcome, replay.scheduler
    return ReplayResult(
        constants=list_constants(replay),
        extrapolated=replay.times.extrapolated if replay.times else [],
        pools=_pools(replay),
        remainder_bytes=memory.remainder_bytes,
        padding_bytes=round(
            memory.block_bytes - memory.beside_bytes - memory.block_tokens * memory.token_bytes
        ),
        rounding_bytes=round(outcome.peak_rounding_tokens * memory.token_bytes),
        reuse=_reuse(replay),
        clock="stated" if replay.times is None else replay.config.cost.clock,
        work=_work(scheduler.clock),
        arrived_ns=arrival_span_ns(replay.config, replay.requests),
        mean_decoding=round(outcome.mean_decoding, 3),
        pauses=outcome.pauses,
        evictions=outcome.evictions,
        rejected=dict(sorted(outcome.rejected.items())),
        series=_series(replay),
        tiers=_describe_tiers(replay.tiers) if replay.tiers else None,
    )


def arrival_span_ns(config: ReplayConfig, requests: Sequence[Request]) -> int | None:
    """Virtual time from the first arrival to the last; None where requests follow answers."""
    if config.workload.arrivals == "closed" or config.fleet.sessions == "think":
        return None
    span_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    return round(span_s / config.workload.speed * _NS)


def _work(clock: VirtualClock) -> ReplayWork:
    done = clock.done._asdict()
    counts = dict(zip(COUNTS, done.pop("counts"), strict=True))
    return ReplayWork(**done, counts=counts, idle_ns=round(clock.idle_s * _NS))


def list_constants(replay: Replay) -> list[Constant]:
    """Every number that the times depend on, with its source."""
    cost, weights = replay.config.cost, replay.parts.weights
    rows: tuple[tuple[str, float, str, str], ...] = (
        ("GPUs", cost.gpus, "", "as configured"),
        *_list_rates(replay),
        ("weights read by every step", weights.dense_bytes / 1e9, "GB", weights.source),
        ("weights of all routed experts", weights.expert_bytes / 1e9, "GB", weights.source),
        (
            "experts a token passes",
            weights.experts_per_token,
            f"of {weights.experts}",
            "num_experts_per_tok; chosen uniformly and independently",
        ),
        (
            "active parameters",
            weights.active_parameters / 1e9,
            "10^9",
            "matrices of the layers held and the output head",
        ),
        (
            "cache entries of a token",
            replay.memory.token_bytes,
            "B",
            "layer schemas; operations move what dsv4kv.ops.spec counts",
        ),
    )
    for tier in replay.tiers.tiers if replay.tiers else ():
        rows = (*rows, *_tier_rows(tier.name, tier.section))
    return [Constant(name=n, value=float(v), unit=u, source=s) for n, v, u, s in rows]


def _list_rates(replay: Replay) -> Iterator[tuple[str, float, str, str]]:
    """What turns steps into time, by the source that does."""
    cost, rates, given = replay.config.cost, replay.parts.rates, "as configured"
    if replay.times is not None:
        client_ms = replay.times.client_s * 1e3
        yield "client, HTTP, tokenizer", client_ms, "ms", replay.times.source
        for name, value, unit in replay.times.constants():
            yield name, value, unit, "likewise"
    elif rates is not None:
        gbps = rates.bytes_per_s / cost.gpus / 1e9
        yield "memory bandwidth of a GPU", gbps, "GB/s", rates.source
        yield "arithmetic of a GPU", cost.tflops, "TFLOP/s", given
        yield "overhead of a step", cost.overhead_us, "µs", given


def _tier_rows(name: str, tier: TierSection) -> Iterator[tuple[str, float, str, str]]:
    given = f"tiers.{name}, as configured"
    yield f"reading from {name}", tier.read_gbps, "GB/s", given
    yield f"writing to {name}", tier.write_gbps, "GB/s", given
    overlapping = f"{given}; of {tier.parallel} at once"
    yield f"an operation of {name}", tier.latency_us, "µs", overlapping


def describe_cache(replay: Replay) -> CacheSummary:
    """The cache on paper."""
    memory, config = replay.memory, replay.config
    first = memory.schemas[-1]
    pages = {"main": first.main, "window": first.window, "indexer": first.indexer}
    for schema in memory.schemas:
        pages["indexer"] = pages["indexer"] or schema.indexer
        pages["main"] = pages["main"] or schema.main
    return CacheSummary(
        model=memory.model.name,
        layers=dict(Counter(schema.layer.attn.value for schema in memory.schemas)),
        total_layers=memory.model.num_layers,
        block_tokens=memory.block_tokens,
        sharing="model",
        formats={place: page.format.name for place, page in pages.items() if page},
        state=config.cache.state,
        num_blocks=memory.num_blocks,
        total_blocks=memory.num_blocks,
        num_slots=memory.num_slots,
        max_context_tokens=memory.max_context_tokens,
        bytes_per_token=memory.token_bytes,
        bytes_per_request=memory.slot_bytes,
        pools=[],
    )


def describe_totals(replay: Replay, *, ended: bool) -> Totals:
    """What went through; ``wall_ns`` is virtual."""
    outcome, scheduler = replay.outcome, replay.scheduler
    return Totals(
        requests=outcome.finished,
        rejected=outcome.rejected.total(),
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
        drafted_tokens=scheduler.drafted,
        rolled_back_tokens=scheduler.rolled_back,
        steps=scheduler.clock.steps,
        wall_ns=round(scheduler.clock.now_s * _NS),
        peak_blocks=outcome.peak_blocks,
        peak_rounding_bytes=round(outcome.peak_rounding_tokens * replay.memory.token_bytes),
        peak_requests=outcome.peak_requests,
        blocks_left=scheduler.cache.private + scheduler.cache.shared if ended else 0,
    )


def list_latencies(
    samples_ns: Mapping[str, list[int]], clocks: Sequence[StepTimes | None]
) -> list[Latency]:
    """Virtual times of what was served, with the largest error of the servers' clocks."""
    known = [clock.held_out for clock in clocks if clock]
    return [
        Latency(
            name=name,
            samples_ns=samples,
            factor=max(each.of(name) for each in known) if len(known) == len(clocks) else None,
        )
        for name, samples in samples_ns.items()
        if samples
    ]


def _pools(replay: Replay) -> list[ReplayPool]:
    memory, outcome = replay.memory, replay.outcome
    rows = (
        ("slots", memory.num_slots, memory.slot_bytes, outcome.peak_requests),
        (
            "checkpoints",
            memory.num_checkpoints,
            memory.checkpoint_bytes,
            outcome.peak_checkpoints,
        ),
        ("blocks", memory.num_blocks, memory.block_bytes, outcome.peak_blocks),
    )
    return [
        ReplayPool(name=name, units=units, unit_bytes=size, peak_units=peak)
        for name, units, size, peak in rows
    ]


def _reuse(replay: Replay) -> Reuse:
    scheduler = replay.scheduler
    prompts, tally = replay.prompts, replay.prompts.tally
    cache = scheduler.cache
    lost = tally.lost | {"in_flight": tally.in_flight_tokens}
    return Reuse(
        rule=replay.config.prefix.rule,
        setting=find_rule(replay.config.prefix.rule).setting,
        shared_tokens=tally.shared_tokens,
        requests=tally.requests,
        resumed_requests=tally.found_requests,
        prompt_blocks=tally.prompt_blocks,
        found_blocks=tally.found_blocks,
        prompt_tokens=tally.prompt_tokens,
        seen_tokens=tally.seen_tokens,
        saved_tokens=tally.saved_tokens,
        lost_tokens={reason: tokens for reason, tokens in lost.items() if tokens},
        computed_tokens=scheduler.computed_tokens,
        again_tokens=scheduler.again_tokens,
        deferred_requests=scheduler.deferrals,
        restored_checkpoints=prompts.restored,
        written_checkpoints=cache.written,
        evicted_checkpoints=cache.dropped,
        orphaned_checkpoints=cache.orphaned,
        kept_bytes=prompts.kept_bytes,
        evicted_blocks=cache.evicted,
    )


def _describe_tiers(tiers: Tiers) -> ReplayTiers:
    objects, asked = tiers.stored.objects, tiers.asked
    return ReplayTiers(
        tiers=[describe_tier(tier, tiers) for tier in tiers.tiers],
        object_tokens=tiers.object_tokens,
        context_bytes=objects.context_bytes,
        tail_bytes=objects.tail_bytes,
        asked_tokens=asked.tokens,
        restored_tokens=asked.restored,
        restored_requests=asked.requests,
        lost_tokens=dict(sum((tier.lost for tier in tiers.tiers), Counter[str]())),
    )


def describe_tier(tier: Tier, tiers: Tiers) -> ReplayTier:
    """One of the tiers."""
    read, write = tier.read, tier.write
    useful = tier.moved_blocks * tiers.object_tokens * tiers.stored.useful_bytes
    return ReplayTier(
        name=tier.name,
        capacity_bytes=tier.sizes.context_bytes,
        tail_capacity_bytes=tier.sizes.tail_bytes,
        peak_bytes=tier.peak_bytes,
        hit_tokens=tier.hit_tokens,
        read_bytes=read.moved_bytes,
        written_bytes=write.moved_bytes,
        useful_bytes=round(useful),
        reads=read.transfers,
        writes=write.transfers,
        read_operations=read.operations,
        write_operations=write.operations,
        read_ns=round(read.busy_s * _NS),
        write_ns=round(write.busy_s * _NS),
        read_waited_ns=round(read.waited_s * _NS),
        write_waited_ns=round(write.waited_s * _NS),
        evicted_objects=tier.shelf.evicted,
        lost_tokens=dict(tier.lost),
    )


def _series(replay: Replay) -> ReplaySeries:
    moments = replay.outcome.series.moments
    names = [name for name in ReplaySeries.model_fields if name != "at_ns"]
    columns = {name: [getattr(moment, name) for moment in moments] for name in names}
    return ReplaySeries(at_ns=[round(moment.time_s * _NS) for moment in moments], **columns)


OnProgress = Callable[[int, int], None]
"""Is called with how many requests are done, of how many, over all cases; with how many points
where several are done at once."""


Serve = Callable[[Point[ReplayConfig], Sequence[Request], Callable[[int], None]], Case]
"""Replays a point of the requests given, and says how many are done."""


@dataclass(frozen=True)
class Invocation:
    """How the replay was asked for.

    Attributes:
        argv: The command line.
        loaded: The configuration file with overrides applied.
        points: Points of the sweep; one without axes.
        overrides: ``a.b=c`` options, in effect.
        axes: ``a.b=1,2`` options.
        sweep: How its points are done.
        serve: Replays one of them; None by one server.
    """

    argv: list[str]
    loaded: Loaded[ReplayConfig]
    points: Sequence[Point[ReplayConfig]]
    overrides: Sequence[str]
    axes: Sequence[str]
    sweep: Sweep = HERE
    serve: Serve | None = None


def run_replay(invocation: Invocation, on_progress: OnProgress) -> RunRecord:
    """Replay every case; Ctrl-C ends the run, a case that fails does not end a sweep.

    Raises:
        Dsv4kvError: The only case cannot be built or its trace cannot be read.
    """
    started, config = datetime.now(UTC), invocation.loaded.config
    trace = config.workload.trace
    digest = trace_sha256(resolve_trace(trace)) if trace else None
    environment = Environment(**capture_environment())
    points, sweep = invocation.points, invocation.sweep
    asked = sweep.points.asked if sweep.points else None
    serve = Server(
        points,
        invocation.serve or serve_alone,
        asked.traces_sha256 if asked else {},
    )
    cases = run_points(
        sweep,
        len(points),
        serve if sweep.parallel else partial(serve, on_progress=on_progress),
        on_progress,
    )
    statuses = [case.status for case in cases] + ["incomplete"] * (len(cases) < len(points))
    return RunRecord(
        run_id=asked.run_id if asked else new_run_id(config.name, started),
        started_utc=asked.started_utc if asked else started.isoformat(timespec="seconds"),
        ended_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        status=next((s for s in ("failed", "incomplete") if s in statuses), "complete"),
        argv=invocation.argv,
        reproduce=_reproduce(invocation),
        config_source=invocation.loaded.source,
        config_sha256=invocation.loaded.sha256,
        trace_source=trace,
        trace_sha256=digest,
        seed=config.measure.seed,
        environment=environment,
        cases=cases,
    )


def _ignore(done: int, total: int) -> None: ...


class Server:
    """Replays points by their numbers; a trace that one shares with the one before is read once.

    It goes to worker processes, which know of nothing else.
    """

    def __init__(
        self,
        points: Sequence[Point[ReplayConfig]],
        serve: Serve,
        traces_sha256: Mapping[str, str],
    ) -> None:
        """``traces_sha256``: what the traces were where it was asked, maybe elsewhere."""
        self._points, self._serve = points, serve
        self._traces_sha256 = dict(traces_sha256)  # of those that were not looked at yet
        self._known: tuple[Any, list[Request]] | None = None

    def __call__(self, number: int, on_progress: OnProgress = _ignore) -> Case:
        """Replay a point; ``on_progress`` hears of all of them.

        Raises:
            Dsv4kvError: The only point cannot be built or its trace cannot be read.
            TraceError: There is another trace here, which is no fault of the point.
        """
        point, count = self._points[number], len(self._points)
        self._check_trace(point.config.workload.trace)
        try:
            with without_collector():
                requests = self._read(point.config)
                so_far = partial(_count_all, on_progress, number, count, len(requests))
                case = self._serve(point, requests, so_far)
                if count > 1:
                    gc.collect()  # caches are full of cycles
                else:
                    gc.freeze()  # the program ends soon: no search for cycles in all of it
            return case
        except Dsv4kvError as error:
            if count == 1:
                raise
            return make_case(point, str(error))

    def _read(self, config: ReplayConfig) -> list[Request]:
        key = (config.workload, config.measure.seed)
        if self._known is None or self._known[0] != key:
            self._known = (key, read_requests(config))
        return self._known[1]

    def _check_trace(self, trace: str | None) -> None:
        if trace is None or trace not in self._traces_sha256:
            return
        if trace_sha256(resolve_trace(trace)) != self._traces_sha256[trace]:
            raise TraceError(f"{trace} is another trace here than where the sweep was begun.")
        del self._traces_sha256[trace]


def _count_all(on_progress: OnProgress, case: int, cases: int, requests: int, done: int) -> None:
    on_progress(case * requests + done, cases * requests)


def serve_alone(
    point: Point[ReplayConfig],
    requests: Sequence[Request],
    on_progress: Callable[[int], None],
) -> Case:
    """Serve the trace by one server and describe what came of it; see ``Serve``.

    Raises:
        Dsv4kvError: The point cannot be built.
    """
    replay = build_replay(point.config, requests)
    interrupted, problem, ended = False, None, False
    try:
        done = 0
        while replay.scheduler.turn():
            if replay.outcome.finished > done:
                done = replay.outcome.finished
                on_progress(done)
        ended = True
    except KeyboardInterrupt:
        interrupted = True
    if ended:
        problem = _find_problem(replay)
    return make_case(
        point,
        problem,
        interrupted=interrupted,
        cache=describe_cache(replay),
        totals=describe_totals(replay, ended=ended),
        latencies=list_latencies(replay.outcome.samples_ns, [replay.times]),
        replay=describe_replay(replay),
    )


def _find_problem(replay: Replay) -> str | None:
    """What must not happen and did."""
    ledger, outcome = replay.scheduler.cache, replay.outcome
    if not outcome.finished:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.rejected.items())
        return (
            f"none of {len(replay.requests):,} requests fits ({reasons}): give more "
            "cache.memory_bytes or cache.num_blocks, or raise cache.max_context_tokens."
        )
    if held := ledger.private + ledger.shared:
        return f"{held} blocks are still held although every request has ended."
    return None


def make_case(
    point: Point[ReplayConfig],
    problem: str | None,
    *,
    interrupted: bool = False,
    cache: CacheSummary | None = None,
    totals: Totals | None = None,
    latencies: Sequence[Latency] = (),
    replay: ReplayResult | None = None,
) -> Case:
    """Make the case of a point: failed where there is a problem, else as far as it came."""
    return Case(
        axis=point.axis,
        status="failed" if problem else "incomplete" if interrupted else "complete",
        error=problem,
        config=point.config.model_dump(mode="json"),
        backend="replay",
        cache=cache,
        totals=totals,
        operations=[],
        latencies=list(latencies),
        memcpy=None,
        verification=NOTHING_CHECKED,
        replay=replay,
    )


def _reproduce(invocation: Invocation) -> str:
    trace = invocation.loaded.config.workload.trace
    words = ["dsv4kv", "replay", *([trace] if trace else []), "--config", invocation.loaded.source]
    options = [("--set", each) for each in invocation.overrides]
    options += [("--axis", each) for each in invocation.axes]
    return shlex.join(words + [word for option in options for word in option])
