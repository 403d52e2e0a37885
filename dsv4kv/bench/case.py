"""Run one configuration from the first request to the last and tell what happened."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from dsv4kv.bench.build import (
    BACKEND,
    build_executor,
    check_data_path,
    check_memory,
    loop_settings,
    plan_from,
)
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import CacheError
from dsv4kv.measure.memcpy import measure_memcpy
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.budget import bytes_per_token
from dsv4kv.model.plan import CachePlan
from dsv4kv.report.record import (
    CacheSummary,
    Case,
    Latency,
    Memcpy,
    Operation,
    Pool,
    Totals,
    Verification,
)
from dsv4kv.workload.loop import ServingLoop
from dsv4kv.workload.source import open_requests
from dsv4kv.workload.verifier import Verifier

Progress = Callable[[int], None]


def run_case(
    axis: dict[str, Any],
    config: BenchConfig,
    on_progress: Progress,
    memory_bytes: int | None = None,
) -> Case:
    """Build the cache, serve the workload, check and record it.

    Ctrl-C ends the run early: what was measured so far comes back, marked incomplete.
    ``on_progress`` is told the tokens of every step; ``memory_bytes`` is the machine's memory.

    Raises:
        ConfigError: The configuration cannot be built, or not on this machine.
        TraceError: The trace cannot be read.
    """
    torch.set_num_threads(config.measure.threads)
    plan = plan_from(config)
    real = config.workload.data == "real"
    if real:
        check_data_path(plan)
    if memory_bytes is not None:
        check_memory(config, plan, memory_bytes)
    recorder = Recorder()
    manager = KVCacheManager(plan, data=real)
    executor, verifier = build_executor(config, manager, recorder) if real else (None, None)
    memcpy = _measure_memcpy(config) if real else None
    requests = open_requests(config.workload, config.measure.seed)
    loop = ServingLoop(manager, requests, loop_settings(config), recorder, executor, on_progress)
    interrupted, problem = False, None
    try:
        loop.run()
    except KeyboardInterrupt:
        interrupted = True
    except CacheError as error:
        problem = str(error)
    cache = _describe_cache(config, plan, manager)
    ended = not interrupted and problem is None
    totals = Totals(**asdict(loop.totals), blocks_left=manager.num_held_blocks if ended else 0)
    problem = problem or _find_problem(cache, totals, verifier)
    return Case(
        axis=axis,
        status="failed" if problem else "incomplete" if interrupted else "complete",
        error=problem,
        config=config.model_dump(mode="json"),
        backend=BACKEND,
        cache=cache,
        totals=totals,
        operations=_operations(recorder),
        latencies=[
            Latency(name=name, samples_ns=samples.tolist())
            for name, samples in sorted(recorder.latencies.items())
        ],
        memcpy=memcpy,
        verification=_verification(verifier),
    )


def unbuilt_case(axis: dict[str, Any], config: BenchConfig, problem: str | None) -> Case:
    """A case of a sweep that failed before it began, or, without a problem, was interrupted."""
    return Case(
        axis=axis,
        status="failed" if problem else "incomplete",
        error=problem,
        config=config.model_dump(mode="json"),
        backend=BACKEND,
        cache=None,
        totals=None,
        operations=[],
        latencies=[],
        memcpy=None,
        verification=_verification(None),
    )


def _measure_memcpy(config: BenchConfig) -> Memcpy:
    size = config.measure.memcpy_bytes
    return Memcpy(bytes=2 * size, samples_ns=measure_memcpy(size))


def _describe_cache(config: BenchConfig, plan: CachePlan, manager: KVCacheManager) -> CacheSummary:
    layers: dict[str, int] = {}
    for schema in plan.schemas:
        layers[schema.layer.attn.value] = layers.get(schema.layer.attn.value, 0) + 1
    first = {"main": None, "window": None, "indexer": None} | {
        place: page.format.name
        for schema in plan.schemas
        for place, page in (
            ("main", schema.main),
            ("window", schema.window),
            ("indexer", schema.indexer),
        )
        if page
    }
    allocated = manager.memory_by_pool()
    pools = [
        Pool(
            name=pool.name,
            layer_type=pool.layer_type,
            layers=pool.layers,
            units=pool.units,
            unit_bytes=pool.unit_bytes,
            predicted_bytes=pool.total_bytes,
            allocated_bytes=allocated.get((pool.name, pool.layer_type), 0),
        )
        for pool in plan.pools
        if config.workload.data == "real" or pool.name == "tables"
    ]
    return CacheSummary(
        model=plan.config.name,
        layers=layers,
        total_layers=plan.config.num_layers,
        block_tokens=config.cache.block_tokens,
        sharing=config.cache.sharing,
        formats={place: name for place, name in first.items() if name},
        state=config.cache.state,
        num_blocks=max(plan.num_blocks.values(), default=0),
        total_blocks=sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups),
        num_slots=plan.num_slots,
        max_context_tokens=plan.max_context_tokens,
        bytes_per_token=float(bytes_per_token(plan.schemas)),
        bytes_per_request=sum(schema.slot_bytes for schema in plan.schemas),
        pools=pools,
    )


def _find_problem(cache: CacheSummary, totals: Totals, verifier: Verifier | None) -> str | None:
    """The first thing that must not happen and did."""
    for pool in cache.pools:
        if pool.predicted_bytes != pool.allocated_bytes:
            return (
                f"the {pool.name} pools of {pool.layer_type} layers take {pool.allocated_bytes} B "
                f"where the plan says {pool.predicted_bytes} B."
            )
    if verifier is not None and verifier.failures:
        return f"{len(verifier.failures)} sampled outputs differ from the reference."
    if totals.blocks_left:
        return f"{totals.blocks_left} blocks are still held although every request has ended."
    if totals.rejected and not totals.peak_requests:
        return (
            f"none of {totals.rejected} requests fits into the cache: raise "
            "cache.max_context_tokens or cache.num_blocks."
        )
    return None


def _operations(recorder: Recorder) -> list[Operation]:
    # Ctrl-C may fall between the three appends of a sample; bytes is the last.
    return [
        Operation(
            name=name,
            layer_type=layer_type,
            samples_ns=samples.ns[: len(samples.bytes)].tolist(),
            entries=samples.entries[: len(samples.bytes)].tolist(),
            bytes=samples.bytes.tolist(),
        )
        for (name, layer_type), samples in sorted(recorder.operations.items())
    ]


def _verification(verifier: Verifier | None) -> Verification:
    checks = verifier.checks if verifier else {}
    return Verification(
        checks=sum(checks.values()),
        by_operation=dict(sorted(checks.items())),
        failures=verifier.failures if verifier else [],
    )
