"""A replay in the record's terms."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsv4kv.prefix.analysis.rules import find_rule
from dsv4kv.replay.build import Replay
from dsv4kv.report.record import CacheSummary, Latency, Pool, Totals
from dsv4kv.report.replay_record import (
    Constant,
    ReplayData,
    ReplayPool,
    ReplayResult,
    ReplaySeries,
    ReplayWork,
    Reuse,
)

if TYPE_CHECKING:
    from dsv4kv.replay.data.serving import RealData

_NS = 1e9


def describe_replay(replay: Replay) -> ReplayResult:
    """Everything that was found."""
    memory, outcome, scheduler = replay.memory, replay.outcome, replay.scheduler
    return ReplayResult(
        constants=list_constants(replay),
        pools=_pools(replay),
        remainder_bytes=memory.remainder_bytes,
        padding_bytes=round(
            memory.block_bytes - memory.beside_bytes - memory.block_tokens * memory.token_bytes
        ),
        rounding_bytes=round(outcome.peak_rounding_tokens * memory.token_bytes),
        reuse=_reuse(replay),
        work=ReplayWork(
            **asdict(scheduler.clock.done), idle_ns=round(scheduler.clock.idle_s * _NS)
        ),
        pauses=outcome.pauses,
        evictions=outcome.evictions,
        rejected=dict(sorted(outcome.rejected.items())),
        series=_series(replay),
        data=_describe_data(replay.data) if replay.data else None,
    )


def list_constants(replay: Replay) -> list[Constant]:
    """Every number that the times depend on, with its source."""
    cost, rates, weights = replay.config.cost, replay.rates, replay.weights
    given = "as configured"
    rows: tuple[tuple[str, float, str, str], ...] = (
        ("GPUs", cost.gpus, "", given),
        ("memory bandwidth of a GPU", rates.bytes_per_s / cost.gpus / 1e9, "GB/s", rates.source),
        ("arithmetic of a GPU", cost.tflops, "TFLOP/s", given),
        ("overhead of a step", cost.overhead_us, "µs", given),
        ("weights read by every step", weights.dense_bytes / 1e9, "GB", weights.source),
        ("weights of all routed experts", weights.expert_bytes / 1e9, "GB", weights.source),
        (
            "experts a token passes",
            weights.experts_per_token,
            f"of {weights.experts}",
            "num_experts_per_tok; chosen alike and independently",
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
            "layer schemas; operations move what dsv4kv.ops.traffic counts",
        ),
    )
    if replay.data:
        source = "measured here on the CPU, one thread; the bandwidth counts for weights alone"
        measured_s = replay.data.times.total_ns / _NS
        rows = (*rows, ("all operations of the cache", measured_s, "s", source))
    return [Constant(name=n, value=float(v), unit=u, source=s) for n, v, u, s in rows]


def describe_cache(replay: Replay) -> CacheSummary:
    """The cache on paper, and the pools where they were allocated."""
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
        pools=_list_allocated(replay.data) if replay.data else [],
    )


def describe_totals(replay: Replay, *, ended: bool) -> Totals:
    """What went through; ``wall_ns`` is virtual."""
    outcome, scheduler = replay.outcome, replay.scheduler
    return Totals(
        requests=outcome.finished,
        rejected=outcome.rejected.total(),
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
        drafted_tokens=scheduler.decoders.drafted,
        rolled_back_tokens=scheduler.decoders.rolled_back,
        steps=scheduler.clock.done.steps,
        wall_ns=round(scheduler.clock.now_s * _NS),
        peak_blocks=outcome.peak_blocks,
        peak_rounding_bytes=round(outcome.peak_rounding_tokens * replay.memory.token_bytes),
        peak_requests=outcome.peak_requests,
        blocks_left=scheduler.ledger.private + scheduler.ledger.shared if ended else 0,
    )


def list_latencies(replay: Replay) -> list[Latency]:
    """Virtual times of all requests that were served."""
    return [
        Latency(name=name, samples_ns=samples)
        for name, samples in replay.outcome.samples_ns.items()
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
    prompts, tally = scheduler.prompts, scheduler.prompts.tally
    store = prompts.checkpoints
    lost = asdict(tally.losses) | {"in_flight": tally.in_flight_tokens}
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
        written_checkpoints=store.written,
        evicted_checkpoints=store.evicted,
        orphaned_checkpoints=store.orphaned,
        kept_bytes=prompts.kept_bytes,
        evicted_blocks=scheduler.ledger.evicted,
    )


def _describe_data(data: "RealData") -> ReplayData:
    from dsv4kv.replay.data.told import describe_data  # needs torch

    return describe_data(data)


def _list_allocated(data: "RealData") -> list[Pool]:
    from dsv4kv.replay.data.told import list_pools  # needs torch

    return list_pools(data)


def _series(replay: Replay) -> ReplaySeries:
    moments = replay.outcome.series.moments
    names = [name for name in ReplaySeries.model_fields if name != "at_ns"]
    columns = {name: [getattr(moment, name) for moment in moments] for name in names}
    return ReplaySeries(at_ns=[round(moment.time_s * _NS) for moment in moments], **columns)
