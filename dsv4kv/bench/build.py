"""From a configuration to a cache and what drives it."""

import numpy as np
import torch

from dsv4kv.cache.handle import Compressors, build_layers
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import ConfigError
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.plan import CachePlan, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import choose_formats
from dsv4kv.ops.compressor import random_compressor
from dsv4kv.ops.registry import load_backend
from dsv4kv.units import format_bytes
from dsv4kv.workload.executor import StepExecutor
from dsv4kv.workload.inputs import InputBank
from dsv4kv.workload.loop import LoopSettings
from dsv4kv.workload.verifier import Verifier

BACKEND = "cpu"
_HOST_BYTES_PER_BLOCK = 32  # free list, marks and generation of the allocator, 8 bytes each


def plan_from(config: BenchConfig) -> CachePlan:
    """Plan the cache that a configuration describes; raises ``ConfigError``."""
    model, cache = config.model, config.cache
    facts = load_model(model.preset)
    formats = model.formats
    return plan_cache(
        facts,
        max_context_tokens=cache.max_context_tokens,
        num_slots=cache.num_slots or config.workload.concurrency,
        num_blocks=cache.num_blocks,
        layers=model.layers,
        stage=model.pipeline.stage,
        stages=model.pipeline.stages,
        draft_layers=model.draft_layers,
        formats=choose_formats(facts, formats.main, formats.window, formats.indexer),
        block_tokens=cache.block_tokens,
        sharing=cache.sharing,
        state=cache.state,
        draft_tokens=config.workload.speculative.draft_tokens,
        hadamard=cache.hadamard,
    )


def check_data_path(plan: CachePlan) -> None:
    """Raise ``ConfigError`` where only the bookkeeping of a model is known, not its data."""
    for schema in plan.schemas:
        spec = schema.layer
        if (
            spec.attn is AttentionType.DSA
            or spec.ratio in (1, 2)
            or spec.kv_owner != spec.layer_idx
        ):
            raise ConfigError(
                f"{plan.config.name} can be planned and its bookkeeping run, but there are no "
                f"operations for its layer {spec.layer_idx} ({spec.attn}, {spec.ratio} tokens an "
                "entry): set workload.data to none."
            )


def check_memory(config: BenchConfig, plan: CachePlan, memory_bytes: int) -> None:
    """Raise ``ConfigError`` where a run needs more memory than the machine has."""
    blocks = sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups)
    needed = blocks * _HOST_BYTES_PER_BLOCK
    advice = "lower cache.max_context_tokens, cache.num_blocks or workload.concurrency"
    if config.workload.data == "real":
        needed += plan.total_bytes + 2 * config.measure.memcpy_bytes
        advice += ", hold fewer layers (model.layers), or set workload.data to none"
    else:
        needed += sum(pool.total_bytes for pool in plan.pools if pool.name == "tables")
    if needed > memory_bytes:
        raise ConfigError(
            f"this run needs {format_bytes(needed)} and the machine has "
            f"{format_bytes(memory_bytes)}: {advice}."
        )


def build_executor(
    config: BenchConfig, manager: KVCacheManager, recorder: Recorder
) -> tuple[StepExecutor, Verifier]:
    """Bind the cache to data, operations and the checks against the reference."""
    plan, seed = manager.plan, config.measure.seed
    compressors = _draw_compressors(plan, seed)
    every = [part for pair in compressors.values() for part in pair if part is not None]
    longest_chunk = min(config.workload.step_tokens, plan.max_context_tokens)
    inputs = InputBank(plan.config, every, longest_chunk, seed)
    verifier = Verifier(inputs, np.random.default_rng(seed))
    executor = StepExecutor(
        list(build_layers(manager, load_backend(BACKEND), compressors).values()),
        inputs,
        recorder,
        verifier,
        index_topk=plan.config.index_topk,
        window_tokens=plan.config.window_tokens,
        seed=seed,
    )
    return executor, verifier


def _draw_compressors(plan: CachePlan, seed: int) -> Compressors:
    generator = torch.Generator().manual_seed(seed)
    compressors: Compressors = {}
    for schema in plan.schemas:
        spec = schema.layer
        if spec.owns_kv:
            main = random_compressor(plan.config, spec, generator)
            indexer = (
                random_compressor(
                    plan.config, spec, generator, indexer=True, hadamard=plan.hadamard
                )
                if schema.indexer
                else None
            )
            compressors[spec.layer_idx] = (main, indexer)
    return compressors


def loop_settings(config: BenchConfig) -> LoopSettings:
    """What the serving loop needs of a configuration."""
    workload, measure = config.workload, config.measure
    return LoopSettings(
        concurrency=workload.concurrency,
        step_tokens=workload.step_tokens,
        draft_tokens=workload.speculative.draft_tokens,
        acceptance=workload.speculative.acceptance,
        max_output_tokens=workload.max_output_tokens,
        warmup_steps=measure.warmup_steps,
        verify_every=measure.verify_every,
        seed=measure.seed,
    )
