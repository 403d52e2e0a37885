"""A whole run: every case of a sweep, and the record of it."""

import gc
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from dsv4kv.config.load import Point
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.clock import COUNTS
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import Dsv4kvError, TraceError
from dsv4kv.processes import without_collector
from dsv4kv.replay.build import Replay, build_replay, read_requests
from dsv4kv.replay.clock.steps import ModelTimes
from dsv4kv.replay.tier import Tier
from dsv4kv.replay.tiers import Tiers
from dsv4kv.runs import parts
from dsv4kv.runs.parts import Part
from dsv4kv.runs.points import (
    Invocation,
    as_options,
    begin_record,
    end_record,
    make_case,
    run_points,
)
from dsv4kv.runs.schema import CacheSummary, Case, Latency, RunRecord, Totals
from dsv4kv.traces import resolve_trace, trace_sha256
from dsv4kv.traces.request import Request

_NS = 1e9
PartT = TypeVar("PartT", bound=Part)


def describe_replay(replay: Replay) -> parts.ReplayResult:
    memory, outcome, scheduler = replay.memory, replay.outcome, replay.scheduler
    tally, cache, clock = replay.prompts.tally, scheduler.cache, scheduler.clock
    lost = tally.lost | {"in_flight": tally.in_flight_tokens}
    moments = outcome.moments
    names = [name for name in parts.ReplaySeries.model_fields if name != "at_ns"]
    counted = ("requests", "prompt_blocks", "found_blocks", "prompt_tokens", "seen_tokens")
    pools = (
        ("slots", memory.num_slots, memory.slot_bytes, outcome.peak_requests),
        ("checkpoints", memory.num_checkpoints, memory.checkpoint_bytes, outcome.peak_checkpoints),
        ("blocks", memory.num_blocks, memory.block_bytes, outcome.peak_blocks),
    )
    reuse = parts.Reuse(
        rule=replay.config.prefix.rule,
        setting=find_rule(replay.config.prefix.rule).setting,
        shared_tokens=tally.shared_tokens,
        saved_tokens=tally.saved_tokens,
        **{name: getattr(tally, name) for name in counted},
        lost_tokens={reason: tokens for reason, tokens in lost.items() if tokens},
        computed_tokens=scheduler.computed_tokens,
        again_tokens=scheduler.again_tokens,
        deferred_requests=scheduler.deferrals,
        restored_checkpoints=replay.prompts.restored,
        written_checkpoints=cache.written,
        evicted_checkpoints=cache.dropped,
        kept_bytes=replay.prompts.kept_bytes,
        evicted_blocks=cache.evicted,
    )
    return parts.ReplayResult(
        constants=list_constants(replay),
        pools=[
            parts.ReplayPool(name=name, units=units, unit_bytes=size, peak_units=peak)
            for name, units, size, peak in pools
        ],
        remainder_bytes=memory.remainder_bytes,
        padding_bytes=round(
            memory.block_bytes - memory.beside_bytes - memory.block_tokens * memory.token_bytes
        ),
        rounding_bytes=round(outcome.peak_rounding_tokens * memory.token_bytes),
        reuse=reuse,
        clock="model",
        work=parts.ReplayWork(
            steps=clock.steps,
            copy_bytes=clock.copy_bytes,
            counts=dict(zip(COUNTS, clock.counts, strict=True)),
            idle_ns=round(clock.idle_s * _NS),
        ),
        arrived_ns=arrival_span_ns(replay.config, replay.requests),
        mean_decoding=round(outcome.mean_decoding, 3),
        pauses=outcome.pauses,
        evictions=outcome.evictions,
        rejected=dict(sorted(outcome.rejected.items())),
        series=parts.ReplaySeries(
            at_ns=[round(time_s * _NS) for time_s, _ in moments],
            **{name: [held[n] for _, held in moments] for n, name in enumerate(names)},
        ),
        tiers=describe_tiers([replay.tiers] if replay.tiers else []),
    )


def arrival_span_ns(config: ReplayConfig, requests: Sequence[Request]) -> int | None:
    """Virtual time from the first arrival to the last; None where requests follow answers."""
    if config.workload.arrivals == "closed" or config.fleet.sessions == "think":
        return None
    span_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    return round(span_s / config.workload.speed * _NS)


def list_constants(replay: Replay) -> list[parts.Constant]:
    """Every number that the times depend on, with its source."""
    cost, weights, given = replay.config.cost, replay.parts.weights, "as configured"
    times = replay.times
    rows: list[tuple[str, float, str, str]] = [
        ("GPUs", cost.gpus, "", given),
        ("client, HTTP, tokenizer", times.client_s * 1e3, "ms", times.source),
        *((*constant, times.source) for constant in times.constants()),
    ]
    token_bytes, experts = replay.memory.token_bytes, weights.experts_per_token
    rows += [
        ("weights read by every step", weights.dense_bytes / 1e9, "GB", weights.source),
        ("weights of all routed experts", weights.expert_bytes / 1e9, "GB", weights.source),
        ("experts a token passes", experts, f"of {weights.experts}", _CHOSEN),
        ("active parameters", weights.active_parameters / 1e9, "billion", _MATRICES),
        ("cache entries of a token", token_bytes, "B", _SCHEMAS),
    ]
    for tier in replay.tiers.tiers if replay.tiers else ():
        name, section, given = tier.name, tier.section, f"tiers.{tier.name}, as configured"
        overlapping = f"{given}; {section.parallel} overlap"
        rows.append((f"reading from {name}", section.read_gbps, "GB/s", given))
        rows.append((f"writing to {name}", section.write_gbps, "GB/s", given))
        rows.append((f"an operation of {name}", section.latency_us, "µs", overlapping))
    return [parts.Constant(name=n, value=float(v), unit=u, source=s) for n, v, u, s in rows]


_CHOSEN = "num_experts_per_tok; chosen uniformly and independently"
_MATRICES = "matrices of the layers held and the output head"
_SCHEMAS = "layer schemas; operations move what dsv4kv.ops.spec counts"


def describe_cache(replay: Replay) -> CacheSummary:
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
    samples_ns: Mapping[str, list[int]], clocks: Sequence[ModelTimes]
) -> list[Latency]:
    """Virtual times of what was served, with the largest error of the servers' clocks."""
    found = []
    for name, samples in samples_ns.items():
        if samples:
            factor = max(clock.held_out.of(name) for clock in clocks)
            found.append(Latency(name=name, samples_ns=samples, factor=factor))
    return found


def describe_tiers(found: Sequence[Tiers]) -> parts.ReplayTiers | None:
    if not found:
        return None
    named: dict[str, dict[int, parts.ReplayTier]] = {}
    for tiers in found:
        for tier in tiers.tiers:
            named.setdefault(tier.name, {})[id(tier)] = describe_tier(tier, tiers)
    objects = found[0].stored.objects
    whole = [add(list(alike.values())) for alike in named.values()]
    return parts.ReplayTiers(
        tiers=whole,
        object_tokens=found[0].object_tokens,
        context_bytes=objects.context_bytes,
        tail_bytes=objects.tail_bytes,
        asked_tokens=sum(each.asked_tokens for each in found),
        restored_tokens=sum(each.restored_tokens for each in found),
        lost_tokens=add_values("", [tier.lost_tokens for tier in whole]),
    )


def add(rows: Sequence[PartT], same: Collection[str] = ()) -> PartT:
    """The sum of all numbers, but of those that are the ``same`` for each, as words are."""
    fields = type(rows[0]).model_fields
    columns = {name: [getattr(row, name) for row in rows] for name in fields}
    return type(rows[0])(**{n: add_values(n, values, same) for n, values in columns.items()})


def add_values(name: str, values: Sequence[Any], same: Collection[str] = ()) -> Any:
    """The sum of values or of dictionaries of them; the first of words and of the ``same``."""
    first = values[0]
    if name in same or first is None or isinstance(first, str):
        return first
    if isinstance(first, dict):
        total = Counter[str]()
        for each in values:
            total.update(each)
        return dict(sorted(total.items()))
    return sum(values)


def describe_tier(tier: Tier, tiers: Tiers) -> parts.ReplayTier:
    read, write = tier.read, tier.write
    useful = tier.moved_blocks * tiers.object_tokens * tiers.stored.useful_bytes
    return parts.ReplayTier(
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
        read_waited_ns=round(read.waited_s * _NS),
        write_waited_ns=round(write.waited_s * _NS),
        lost_tokens=dict(tier.lost),
    )


OnProgress = Callable[[int, int], None]
"""Is called with how many requests are done, of how many, over all cases; with how many points
where several are done concurrently."""
Serve = Callable[[Point[ReplayConfig], Sequence[Request], Callable[[int], None]], Case]
"""Replays a point of the requests given, and says how many are done."""


def run_replay(
    invocation: Invocation[ReplayConfig], on_progress: OnProgress, serve: Serve | None = None
) -> RunRecord:
    """Replay every case by ``serve``; Ctrl-C ends the run, a failed case does not end a sweep."""
    points, sweep, loaded = invocation.points, invocation.sweep, invocation.loaded
    trace = loaded.config.workload.trace
    words = ["dsv4kv", "replay", *([trace] if trace else []), "--config", loaded.source]
    words += as_options(invocation.overrides, invocation.axes)
    reproduce = shlex.join(words)
    begun = begin_record(loaded, trace, argv=invocation.argv, reproduce=reproduce, sweep=sweep)
    digests = sweep.points.asked.traces_sha256 if sweep.points else {}
    server = Server(points, serve or serve_alone, digests)
    one = server if sweep.parallel else partial(server, on_progress=on_progress)
    return end_record(begun, run_points(sweep, len(points), one, on_progress), len(points))


class Server:
    """Replays points by number in worker processes; a trace of two in a row is read once."""

    def __init__(
        self, points: Sequence[Point[ReplayConfig]], serve: Serve, traces_sha256: Mapping[str, str]
    ) -> None:
        """``traces_sha256``: its traces as they were given, maybe on another machine."""
        self._points, self._serve = points, serve
        self._traces_sha256 = dict(traces_sha256)  # of those that were not looked at yet
        self._known: tuple[Any, list[Request]] | None = None

    def __call__(self, number: int, on_progress: OnProgress = lambda done, total: None) -> Case:
        """Replay a point; ``on_progress`` is called with each of them."""
        point, count = self._points[number], len(self._points)
        trace = point.config.workload.trace or ""
        digest = self._traces_sha256.get(trace)
        if digest and trace_sha256(resolve_trace(trace)) != digest:
            raise TraceError(f"{trace} is another trace here than where the sweep was begun.")
        self._traces_sha256.pop(trace, None)
        try:
            with without_collector():
                key = (point.config.workload, point.config.measure.seed)
                if self._known is None or self._known[0] != key:
                    self._known = (key, read_requests(point.config))
                requests = self._known[1]
                total = len(requests)
                case = self._serve(
                    point, requests, lambda n: on_progress(number * total + n, count * total)
                )
                if count > 1:
                    gc.collect()  # caches are full of cycles
                else:
                    gc.freeze()  # the program ends soon: no search for cycles in all of it
            return case
        except Dsv4kvError as error:
            if count == 1:
                raise
            return replayed_case(point, str(error))


def serve_alone(
    point: Point[ReplayConfig], requests: Sequence[Request], on_progress: Callable[[int], None]
) -> Case:
    """Serve the trace by one server and describe what came of it; see ``Serve``."""
    replay, ended, done = build_replay(point.config, requests), False, 0
    with suppress(KeyboardInterrupt):
        while replay.scheduler.turn():
            if replay.outcome.finished > done:
                done = replay.outcome.finished
                on_progress(done)
        ended = True
    problem = _find_problem(replay) if ended else None
    return replayed_case(
        point,
        problem,
        interrupted=not ended,
        cache=describe_cache(replay),
        totals=describe_totals(replay, ended=ended),
        latencies=list_latencies(replay.outcome.samples_ns, [replay.times]),
        replay=describe_replay(replay),
    )


def _find_problem(replay: Replay) -> str | None:
    cache, outcome = replay.scheduler.cache, replay.outcome
    if not outcome.finished:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.rejected.items())
        return (
            f"none of {len(replay.requests):,} requests fits ({reasons}): give more "
            "cache.memory_bytes or cache.num_blocks, or raise cache.max_context_tokens."
        )
    if held := abs(cache.private) + cache.shared:
        return f"{held} blocks are still held although every request has ended."
    return None


def replayed_case(point: Point[ReplayConfig], problem: str | None, **known: Any) -> Case:
    """Make the case of a point; see ``make_case``."""
    config = point.config.model_dump(mode="json")
    return make_case(axis=point.axis, config=config, backend="replay", error=problem, **known)
