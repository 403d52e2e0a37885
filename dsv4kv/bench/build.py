"""From a configuration to a cache and what drives it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from dsv4kv.bench.device import CudaDevice, DeviceClock
from dsv4kv.bench.serve.executor import Gpu, Outputs, Recorder, StepExecutor, read_operations
from dsv4kv.bench.serve.graphs import DecodeGraphs, foresee_modules
from dsv4kv.bench.serve.inputs import EntryChooser, InputBank, PlacedContexts
from dsv4kv.bench.serve.reuse import PrefixReuse
from dsv4kv.bench.serve.verifier import Verifier
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import Compressors, KVCacheManager, LayerCache, build_layers
from dsv4kv.choices import PEERS, choose
from dsv4kv.config.bench import INDEXES, BenchConfig
from dsv4kv.core.policies import make_policy
from dsv4kv.core.tree import PrefixTree
from dsv4kv.errors import ConfigError, PeerUnavailable
from dsv4kv.model.config import AttentionType
from dsv4kv.model.formats import MOVED_FORMATS
from dsv4kv.model.plan import (
    CHECKPOINT_TOKENS,
    CachePlan,
    at_whole_block,
    choose_formats,
    plan_cache,
)
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu
from dsv4kv.ops.cuda.launch import compile_ahead
from dsv4kv.ops.registry import ResolvedBackend, resolve_backend
from dsv4kv.ops.spec import STEP_LAUNCH, Backend, Choice
from dsv4kv.ops.spec import choose as choose_variants
from dsv4kv.ops.storage import Compressor, make_rope, random_compressor
from dsv4kv.units import format_bytes

_HOST_BYTES_PER_BLOCK = 32  # free list, marks and generation of the allocator, 8 bytes each


def plan_from(config: BenchConfig) -> CachePlan:
    """Plan the cache that a configuration describes; raises ``ConfigError``."""
    model, cache = config.model, config.cache
    facts = load_model(model.preset)
    formats = model.formats
    return plan_cache(
        facts,
        max_context_tokens=config.max_context_tokens,
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
        rope=cache.rope,
    )


def check_data_path(plan: CachePlan) -> None:
    """Raise ``ConfigError`` where only the bookkeeping of a model is known, not its data."""
    for schema in plan.schemas:
        for page in (schema.main, schema.indexer, schema.window):
            if page is not None and page.format not in MOVED_FORMATS:
                raise ConfigError(
                    f"{plan.config.name} with {page.format.name} entries can be planned and its "
                    "bookkeeping run, but no operation reads and writes them: set workload.data "
                    "to none, or take another format."
                )


def check_contexts(config: BenchConfig, plan: CachePlan) -> None:
    """Raise ``ConfigError`` where the pools do not hold all contexts that are to be placed."""
    workload = config.workload
    if not workload.context:
        return
    for group in plan.groups:
        each, blocks = group.blocks_for(workload.placed_tokens), plan.num_blocks[group.name]
        if each * workload.concurrency > blocks:
            raise ConfigError(
                f"{workload.concurrency} contexts of {workload.placed_tokens:,} tokens take "
                f"{each * workload.concurrency:,} blocks and the pool has {blocks:,}, enough for "
                f"{blocks // each if each else 0}: lower workload.concurrency or "
                "workload.context, or raise cache.num_blocks."
            )


def check_memory(
    config: BenchConfig, plan: CachePlan, memory_bytes: int | None, device: CudaDevice | None
) -> None:
    """Raise ``ConfigError`` where a run needs more memory than the machine has, or the GPU free.

    ``memory_bytes`` is the machine's; None where that is not known.
    """
    blocks = sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups)
    on_host, on_gpu = blocks * _HOST_BYTES_PER_BLOCK, 0
    real = config.workload.data == "real"
    if real and device is None:
        on_host += _data_bytes(config, plan)
    else:
        on_host += sum(pool.total_bytes for pool in plan.pools if pool.name == "tables")
    if device is not None:
        # graphs have their own outputs
        on_gpu = _data_bytes(config, plan) + 2 * _output_bytes(plan, config.workload.concurrency)
    for needed, held, needs, has in (
        (on_host, memory_bytes, "", "the machine has {}"),
        (on_gpu, device.free_bytes if device else None, " of GPU memory", "{} are free"),
    ):
        if held is not None and needed > held:
            there, placed = has.format(format_bytes(held)), config.workload.context
            lower = "workload.context" if placed else "cache.max_context_tokens, cache.num_blocks"
            fewer = ", hold fewer layers (model.layers), or set workload.data to none"
            raise ConfigError(
                f"this run needs {format_bytes(needed)}{needs} and {there}: lower {lower} or "
                f"workload.concurrency{fewer if real else ''}."
            )


def _data_bytes(config: BenchConfig, plan: CachePlan) -> int:
    """Bytes of pools, checkpoints, angles, and of what is copied to compare rates with."""
    prefix, angles = config.cache.prefix, 0
    if plan.rope != "float64":  # a row of float32 for each entry that a request can have
        rows = sum(plan.max_context_tokens // ratio for ratio in _ratios(plan))
        angles = 4 * plan.config.rope_dim * rows
    each = sum(at_whole_block(schema).slot_bytes for schema in plan.schemas)
    checkpoints = 0 if prefix.index == "none" else prefix.checkpoints * each
    return plan.total_bytes + checkpoints + 2 * config.measure.memcpy_bytes + angles


def _output_bytes(plan: CachePlan, requests: int) -> int:
    """Bytes that a decode step gathers at full context, bf16: more than reading in place."""
    model = plan.config
    most = dict.fromkeys(("chosen", "all", "indexer"), 0)
    for schema in plan.schemas:
        entries = schema.entries_after(plan.max_context_tokens)
        if schema.indexer:
            most["indexer"] = max(most["indexer"], entries * model.index_dim)
            most["chosen"] = model.index_topk * model.head_dim
        elif schema.main:
            most["all"] = max(most["all"], entries * model.head_dim)
    return 2 * requests * (sum(most.values()) + model.window_tokens * model.head_dim)


def resolve(config: BenchConfig, device: CudaDevice | None) -> ResolvedBackend:
    """The operations that a configuration names; raises ``ConfigError``, ``PeerUnavailable``."""
    own = "cuda" if device else "cpu"
    if device is None and config.backend in PEERS:
        raise PeerUnavailable(f"{config.backend} runs on a GPU, and the cache is on the CPU.")
    architecture = device.architecture if device else None  # several ways only on a GPU
    variants = choose_variants(config.ops.variant.model_dump(), architecture)
    return resolve_backend(config.backend or own, own, variants)


@dataclass(frozen=True)
class Drive:
    """What moves a cache's bytes, and checks them."""

    executor: StepExecutor  # runs the steps
    verifier: Verifier  # compares samples with the reference
    gathers_because: str | None
    """Why decode steps gather without being asked to; None where they do not."""


def build_manager(
    config: BenchConfig, plan: CachePlan, device: CudaDevice | None
) -> KVCacheManager:
    """Allocate the cache, with its data if the workload has any."""
    where, on_gpu = device.device if device else "cpu", device is not None
    real = config.workload.data == "real"
    return KVCacheManager(plan, where, data=real, copies_tables=on_gpu)


def build_drive(
    config: BenchConfig,
    manager: KVCacheManager,
    recorder: Recorder,
    resolved: ResolvedBackend,
    device: CudaDevice | None = None,
) -> Drive:
    """Bind the cache to data, operations and the checks against the reference."""
    plan, seed = manager.plan, config.measure.seed
    compressors = _draw_compressors(plan, seed)
    every = [part for pair in compressors.values() for part in pair if part]
    pages = [(schema.main, schema.state_shape) for schema in plan.schemas]
    pages += [(schema.indexer, schema.indexer_state_shape) for schema in plan.schemas]
    given = [page.format.dims for page, state in pages if page and not state]
    topk, window = plan.config.index_topk, plan.config.window_tokens
    placed = 2 * window + plan.draft_tokens if config.workload.context else 0
    longest_chunk = min(max(config.workload.step_tokens, placed), plan.max_context_tokens)
    bound = build_layers(manager, resolved.backend, _moved(compressors, manager.device))
    layers = list(bound.values())
    contexts = PlacedContexts(layers, seed) if config.workload.context else None
    why = why_gathered(layers, resolved.foreign, on_gpu=device is not None)
    asking, step = None, config.workload.step
    if step == "engine" and why:
        raise ConfigError(f"workload.step is engine, and {why}: set it to gather, or to null.")
    if step != "gather" and not why:
        asking = sorted({e.schema.layer.ratio for e in layers if e.indexer is not None})
    inputs = InputBank(plan.config, every, longest_chunk, seed, given, asking)
    verifier = Verifier(inputs, compressors, np.random.default_rng(seed), contexts)
    executor = StepExecutor(
        layers=layers,
        inputs=inputs.to(manager.device),
        recorder=recorder,
        observer=verifier.look,
        chooser=EntryChooser(topk, seed),
        outputs=Outputs(manager.device, topk, window),
        device=manager.device,
        contexts=contexts,
    )
    if device is not None:
        compile_ahead(foresee_modules(executor, manager), device.device)
        executor.gpu = _build_gpu(config, manager, executor, device, resolved.variants)
    return Drive(executor, verifier, why if step is None and why else None)


def why_gathered(layers: Sequence[LayerCache], foreign: Collection[str], *, on_gpu: bool) -> str:
    """Why decode steps cannot read in place, as a clause; empty where they can."""
    for operation in foreign:
        if operation.startswith("gather_"):
            return f"--backend provides {operation}"
    selected: set[int] = set()
    for layer in layers:
        if layer.window is None:
            return f"attend does not read the entries of {layer.model.name}"
        spec = layer.schema.layer
        if layer.indexer is not None and spec.selects:
            selected.add(spec.ratio)
        elif spec.attn is AttentionType.CSA and spec.ratio not in selected:
            return f"no layer held selects what layer {spec.layer_idx} attends to"
        for operation, _ in read_operations(layer, engine=True):
            if on_gpu and getattr(layer.backend, operation).__module__ == cpu.__name__:
                return f"{operation} has no kernel for a GPU"
    return ""


def _build_gpu(
    config: BenchConfig,
    manager: KVCacheManager,
    executor: StepExecutor,
    device: CudaDevice,
    variants: Choice,
) -> Gpu:
    tables, decode, graphs = manager.device_tables, config.workload.decode, None
    assert tables is not None
    dependent = variants.get(STEP_LAUNCH) == "dependent"
    if decode != "eager":
        made = executor, manager, device.make_capture(), config.workload.concurrency
        graphs = DecodeGraphs(*made, dependent=dependent)
    fused, clock = variants.get("step_write") != "separate", DeviceClock(device.make_event)
    return Gpu(tables, clock, graphs, decode == "both", fused, dependent)


def build_reuse(
    config: BenchConfig, manager: KVCacheManager, backend: Backend
) -> PrefixReuse | None:
    """What shares prefixes between requests; None where nothing does. Raises ``ConfigError``."""
    prefix, block_tokens = config.cache.prefix, config.cache.block_tokens
    if prefix.index == "none":
        return None
    choose(INDEXES, prefix.index, "a prefix index")
    key_tokens = block_tokens if prefix.index == "block_hash" else CHECKPOINT_TOKENS
    block_keys = block_tokens // key_tokens
    return PrefixReuse(
        manager,
        PrefixTree(make_policy(prefix.policy), block_keys),
        CheckpointPool(manager, prefix.checkpoints),
        backend if config.workload.data == "real" else None,
        key_tokens=key_tokens,
        windows=prefix.windows,
        period_tokens=prefix.period_tokens,
    )


def _draw_compressors(plan: CachePlan, seed: int) -> Compressors:
    """Random ones on the host; layers of one ratio share a table of angles."""
    generator = torch.Generator().manual_seed(seed)
    ropes = {
        ratio: make_rope(plan.config, ratio, plan.max_context_tokens, plan.rope)
        for ratio in _ratios(plan)
    }
    compressors: Compressors = {}
    for schema in plan.schemas:
        spec = schema.layer
        if spec.owns_kv and spec.attn is not AttentionType.DSA:
            draw = partial(random_compressor, plan.config, spec, generator, rope=ropes[spec.ratio])
            main = draw()
            indexer = draw(indexer=True, hadamard=plan.hadamard) if schema.indexer else None
            compressors[spec.layer_idx] = main, indexer
    return compressors


def _moved(compressors: Compressors, device: torch.device) -> Compressors:
    ropes = {main.ratio: main.rope for main, _ in compressors.values()}
    ropes = {ratio: rope.to(device) for ratio, rope in ropes.items()}

    def move(compressor: Compressor) -> Compressor:
        return replace(compressor, rope=ropes[compressor.ratio]).to(device)

    return {
        layer: (move(main), move(indexer) if indexer else None)
        for layer, (main, indexer) in compressors.items()
    }


def _ratios(plan: CachePlan) -> set[int]:
    """Ratios of the layers that rotate entries, which DSA layers do not."""
    layers = (schema.layer for schema in plan.schemas)
    return {each.ratio for each in layers if each.owns_kv and each.attn is not AttentionType.DSA}
