"""From a replay's configuration to a real cache, if this machine can hold it."""

from collections.abc import Container, Sequence

import torch

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.bench.case import describe_cache
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.handle import Compressors, build_layers
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig, CacheSection, MeasureSection, WorkloadSection
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.registry import load_backend
from dsv4kv.record.replay import CacheStepTimes, ReplayData
from dsv4kv.record.schema import Pool, Verification
from dsv4kv.replay.clock import Rates
from dsv4kv.replay.data.cache import KeptWindows, Parts, RealData, Rules, SharedBlocks, StepClock
from dsv4kv.replay.data.check import KINDS, FreshCache, ReuseCheck
from dsv4kv.replay.memory import MemoryPlan
from dsv4kv.serve.executor import StepExecutor
from dsv4kv.serve.inputs import PromptContents
from dsv4kv.traces.request import Request
from dsv4kv.units import format_bytes


def build_data(
    config: ReplayConfig,
    memory: MemoryPlan,
    rates: Rates,
    requests: Sequence[Request],
    kept: Container[int],
    *,
    shared_tokens: int,
    longest_tokens: int,
    machine_bytes: int | None,
) -> RealData:
    """Allocate the cache of a replay and what checks it.

    Args:
        config: What was asked for.
        memory: How the memory is divided.
        rates: The model's, for the times that are not measured.
        requests: The trace.
        kept: Has the keys whose checkpoints are kept.
        shared_tokens: Tokens of a shared block.
        longest_tokens: Most tokens of a request that can be served.
        machine_bytes: Memory of the machine; None where that is not known.

    Raises:
        ConfigError: The data does not fit the machine, or the model has layers without a data
            path.
    """
    bench = _as_bench(config, memory, longest_tokens)
    plan, alone = plan_from(bench), plan_from(_one_slot(bench))
    check_data_path(plan)
    checkpoints = _num_checkpoints(config, memory, shared_tokens)
    _check_memory(plan, alone, checkpoints * memory.checkpoint_bytes, machine_bytes)
    torch.set_num_threads(bench.measure.threads)
    rules = Rules(
        shared_tokens=shared_tokens,
        block_tokens=memory.block_tokens,
        restores=memory.strategy.kind != "zero",
        every_block=memory.strategy.kind == "full",
        verify_every=config.measure.verify_every,
        spare_blocks=_spare_blocks(config, memory.block_tokens),
    )
    parts = _build_parts(bench, plan, alone, checkpoints, kept, rules)
    times = StepClock(parts.recorder.now_ns, rates.bytes_per_s)
    return RealData(parts, rules, times, requests)


def _build_parts(
    bench: BenchConfig,
    plan: CachePlan,
    alone: CachePlan,
    checkpoints: int,
    kept: Container[int],
    rules: Rules,
) -> Parts:
    """Allocate the cache, and a second one of one slot."""
    manager, recorder = build_manager(bench, plan, None), Recorder()
    backend, contents = load_backend("cpu"), PromptContents()
    executor = build_drive(bench, manager, recorder, backend).executor
    executor.observer = check = ReuseCheck(
        _build_fresh(alone, executor, contents, bench.workload.step_tokens)
    )
    shared = SharedBlocks(manager, rules.shared_tokens // rules.block_tokens)
    pool = CheckpointPool(manager, checkpoints)
    return Parts(
        config=bench,
        manager=manager,
        backend=backend,
        recorder=recorder,
        executor=executor,
        contents=contents,
        shared=shared,
        pool=pool,
        windows=KeptWindows(pool, shared if rules.every_block else kept),
        check=check,
    )


def _as_bench(config: ReplayConfig, memory: MemoryPlan, longest_tokens: int) -> BenchConfig:
    """The cache as ``dsv4kv bench`` would be asked for it."""
    scheduler = config.scheduler
    return BenchConfig(
        name=config.name,
        device="cpu",
        model=config.model,
        cache=CacheSection(
            block_tokens=memory.block_tokens,
            allocator="refcount",
            max_context_tokens=longest_tokens,
            num_blocks=memory.num_blocks + _spare_blocks(config, memory.block_tokens),
            state=config.cache.state,
        ),
        workload=WorkloadSection(
            concurrency=scheduler.max_requests,
            step_tokens=scheduler.step_tokens,
            speculative=scheduler.speculative,
            step="gather",  # what is gathered is compared byte by byte
            data="real",
        ),
        measure=MeasureSection(seed=config.measure.seed),
    )


def _spare_blocks(config: ReplayConfig, block_tokens: int) -> int:
    """Blocks in which requests compute what they have found, to have window and state.

    Those of one chunk at a time are held, and of every request one that is not whole yet.
    """
    scheduler = config.scheduler
    return scheduler.step_tokens // block_tokens + 1 + scheduler.max_requests


def _num_checkpoints(config: ReplayConfig, memory: MemoryPlan, shared_tokens: int) -> int:
    """As many as are kept and one chunk's that are not yet, and the blank one."""
    cached = memory.num_blocks * memory.block_tokens // shared_tokens
    kept = cached if memory.num_checkpoints is None else min(cached, memory.num_checkpoints)
    if memory.strategy.kind == "full":
        kept = cached
    return kept + config.scheduler.step_tokens // shared_tokens + 1 + 1


def _one_slot(bench: BenchConfig) -> BenchConfig:
    """The same cache for one request."""
    workload = bench.workload.model_copy(update={"concurrency": 1})
    cache = bench.cache.model_copy(update={"num_blocks": None, "allocator": "stack"})
    return bench.model_copy(update={"workload": workload, "cache": cache})


def _check_memory(
    plan: CachePlan, alone: CachePlan, checkpoint_bytes: int, machine_bytes: int | None
) -> None:
    needed = plan.total_bytes + alone.total_bytes + checkpoint_bytes
    if machine_bytes is not None and needed > machine_bytes:
        raise ConfigError(
            f"the data of this replay needs {format_bytes(needed)} and the machine has "
            f"{format_bytes(machine_bytes)}: lower cache.memory_bytes or cache.num_blocks, lower "
            "scheduler.max_requests, hold fewer layers (model.layers), or set workload.data to "
            "none."
        )


def _build_fresh(
    plan: CachePlan, executor: StepExecutor, contents: PromptContents, chunk_tokens: int
) -> FreshCache:
    """A cache of one slot with the compressors and inputs of the one that serves."""
    compressors: Compressors = {
        layer.schema.layer.layer_idx: (
            layer.main.compressor,
            layer.indexer.compressor if layer.indexer else None,
        )
        for layer in executor.layers
        if layer.parts and layer.main and layer.main.compressor
    }
    manager = KVCacheManager(plan)
    layers = build_layers(manager, executor.layers[0].backend, compressors)
    return FreshCache(manager, list(layers.values()), executor.inputs, contents, chunk_tokens)


def describe_data(data: RealData) -> ReplayData:
    """Times of the steps, and what was compared."""
    by_kind = data.parts.check.by_kind
    return ReplayData(
        steps=[
            CacheStepTimes(kind=kind, measured_ns=times.measured_ns, modelled_ns=times.modelled_ns)
            for kind, times in data.times.by_kind.items()
            if times.measured_ns
        ],
        compared={kind: by_kind[kind] for kind in KINDS if by_kind[kind]},
        spare_blocks=data.rules.spare_blocks,
    )


def describe_checks(data: RealData) -> Verification:
    """All comparisons with a run without reuse."""
    check = data.parts.check
    return Verification(
        checks=check.by_operation.total(),
        by_operation=dict(sorted(check.by_operation.items())),
        failures=check.failures,
    )


def list_pools(data: RealData) -> list[Pool]:
    """Every pool, as planned and as allocated."""
    manager = data.parts.manager
    return describe_cache(data.parts.config, manager.plan, manager).pools
