# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""vLLM 0.33's own offloading: chunks of host memory, and which of a prompt's blocks are stored.

``python vllm_host.py FOLDER < settings > answers`` in an environment of its own; FOLDER holds the
unpacked wheel. A line is one setting as ``vllm_planner.py`` reads it, with ``tp``, ``pp``,
``given`` (bytes for all ranks), ``prompt`` (tokens) and ``retention`` (tokens, null for dense).
The answer: bytes of a chunk (aligned, of all the ranks' copies), chunks, the tokens that vLLM
counts for them, whether one copy serves all ranks, blocks of a rank by SimpleCPUOffload, and
chunks stored of the prompt, group by group; whether there is a plan without the hybrid manager;
and what ``refused`` says to a context over ranks and to HiSparse.
Source: ``v1/kv_offload/cpu/{spec,common}.py``, ``v1/simple_kv_offload/manager.py``,
``distributed/kv_transfer/kv_connector/v1/offloading/config.py``, ``v1/core``.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vllm_planner
from stand_ins import answer_lines


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    found = vllm_planner.load(folder)
    from vllm.config.attention import HiSparseConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import config
    from vllm.v1.core import kv_cache_coordinator
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
    from vllm.v1.kv_offload.cpu import spec
    from vllm.v1.simple_kv_offload import manager

    found.config, found.spec, found.manager = config, spec, manager
    found.registry, found.coordinator = KVCacheSpecRegistry, kv_cache_coordinator
    found.hisparse = HiSparseConfig
    return found


def answer(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What the engine makes of a setting."""
    planning, cache = engine.kv_cache_planning, engine.kv_cache_interface
    specs, config = vllm_planner.specs_of(asked, engine)
    groups = planning.get_kv_cache_groups(config, specs)
    block_bytes, ranks = planning._pool_bytes_per_block(config, groups), asked["tp"] * asked["pp"]
    blocks = max(1, asked["memory"] // block_bytes)
    tensor = cache.KVCacheTensor(
        size=blocks * block_bytes, layers=[], layer_stride=0, block_stride=0
    )
    made = cache.KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[tensor], kv_cache_groups=groups
    )
    made.kv_tp_replicas = planning.kv_cache_groups_tp_replicas(groups, asked["tp"])
    config.parallel_config = SimpleNamespace(
        tensor_parallel_size=asked["tp"], pipeline_parallel_size=asked["pp"],
        prefill_context_parallel_size=1, decode_context_parallel_size=1, world_size=ranks,
        distributed_executor_backend="mp" if ranks <= 8 else "ray",
        nnodes_within_dp=-(-ranks // 8), rank=0, data_parallel_index=0, data_parallel_size=1,
        data_parallel_rank_local=None,
    )  # fmt: skip
    config.kv_transfer_config = SimpleNamespace(
        kv_connector_extra_config={"cpu_bytes_to_use": asked["given"]}, engine_id="1"
    )
    config.model_config.use_mla, config.model_config.model = True, asked["model"]
    config.kv_events_config, config.use_v2_model_runner = None, True
    config.cache_config.enable_prefix_caching = True
    config.cache_config.kv_cache_layout = None
    config.cache_config.prefix_match_unit = None
    engine.spec.current_platform = SimpleNamespace(
        is_cuda_alike=lambda: True, is_rocm=lambda: False, is_xpu=lambda: False
    )
    offloading = engine.config.build_offloading_config(config, made)
    tier = engine.spec.CPUOffloadingSpec(offloading)
    simple = engine.manager.SimpleCPUOffloadScheduler._derive_cpu_config(
        made, asked["given"] // ranks
    )
    return {
        "chunk_bytes": tier.kv_bytes_per_chunk,
        "chunks": tier.num_chunks,
        "tokens": tier.cpu_info.cpu_kv_cache_size_tokens,
        "shared": tier.replicated_layout,
        "simple_blocks": simple.num_blocks,
        "stored": stored(engine, asked, groups, offloading),
        "without_hybrid": plans_without_hybrid(engine, config, specs),
        "refused": refusals(engine, config, groups, specs),
    }


def refusals(engine, config, groups, specs) -> dict[str, str]:
    """What the engine says to a context that is spread over ranks, and to HiSparse."""
    cache, said = engine.kv_cache_interface, {}
    first = lambda spec: next(iter(cache.iter_layer_specs(spec)))  # noqa: E731
    flat = [replace(group, kv_cache_spec=first(group.kv_cache_spec)) for group in groups]
    made = cache.KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=flat)
    block = min(group.kv_cache_spec.block_size for group in flat)
    for name, dcp, pcp in (("dcp", 2, 1), ("prefill_cp", 1, 2)):
        try:
            engine.coordinator.get_kv_cache_coordinator(
                kv_cache_config=made, max_model_len=4096, max_in_flight_tokens=8192,
                use_eagle=False, enable_caching=True, enable_kv_cache_events=False,
                dcp_world_size=dcp, pcp_world_size=pcp, scheduler_block_size=512 * dcp,
                hash_block_size=block * (dcp if len(flat) == 1 else 1),
            )  # fmt: skip
        except AssertionError as error:
            said[name] = str(error)
    config.attention_config.hisparse_config = engine.hisparse()
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.scheduler_config.max_num_seqs, config.kv_transfer_config = 64, None
    try:
        engine.kv_cache_planning.get_kv_cache_groups(config, specs)
    except ValueError as error:
        said["hisparse"] = str(error)
    return said


def plans_without_hybrid(engine, config, specs) -> bool:
    """Whether groups are made with the hybrid cache manager off."""
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    try:
        return bool(engine.kv_cache_planning.get_kv_cache_groups(config, specs))
    except TypeError:
        return False


def stored(engine, asked, groups, offloading) -> list[int]:
    """Chunks that are stored of a prompt, by the masks of the groups' managers."""
    whole = [each.tokens_per_block for each in offloading.groups
             if each.sliding_window_size_in_chunks is None]  # fmt: skip
    counts = []
    for each in offloading.groups:
        spec = groups[each.group_id].kv_cache_spec
        inner = next(iter(engine.kv_cache_interface.iter_layer_specs(spec)))
        chunks = asked["prompt"] // each.tokens_per_block
        mask = engine.registry.get_manager_class(inner).reachable_block_mask(
            start_block=0, end_block=chunks, alignment_tokens=whole[0], kv_cache_spec=inner,
            use_eagle=False, retention_interval=asked["retention"],
            reachable_boundaries=(asked["prompt"] - 1,),
            final_segment_end_block=None if asked["retention"] is not None else chunks,
        )  # fmt: skip
        counts.append(chunks if mask is None else sum(mask))
    return sorted(counts)


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
