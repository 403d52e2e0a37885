# mypy: ignore-errors
# ruff: noqa: F401, I001
# It runs in the engine's environment, where nothing is typed.
"""vLLM 0.33's own planner: specs of its layers' own methods, groups, blocks and the start's check.

``python vllm_planner.py FOLDER < settings > answers`` in an environment of its own; FOLDER holds
the unpacked wheel. A line is one setting: ``kind`` (``v4``, ``v41`` or ``flat``), ``ratios``,
``owners``, ``layers``, ``drafts`` (layers), ``capability`` (of the GPU), ``dtype``, ``plain``
(FlashInfer's rows), ``mega`` (attention), ``mxfp4``, ``draft_tokens``, ``block``, ``context``,
``flight``, ``memory`` and ``selecting`` (V3.2's layers with an indexer). The answer: bytes of a
block, blocks of a request, bytes that the start asks for, blocks of the memory, tokens that are
printed, and tokens of a block in every group.
Source: ``models/deepseek_v41``, ``models/deepseek_v4``, ``model_executor/models/deepseek_v2.py``,
``v1/attention/backends/mla/sparse_swa.py``, ``v1/core/kv_cache_planning.py``.
"""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines, stand_in

FP4_KEY, FP8_KEY = 68, 132


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    sys.path.insert(0, str(folder))
    stand_in("uvloop", "xgrammar", "partial_json_parser", "llguidance")
    import torch
    from vllm.v1.core import kv_cache_planning, kv_cache_utils
    from vllm.v1 import kv_cache_interface
    from vllm.v1.attention.backends.mla import flashmla_sparse, sparse_swa
    from vllm.models.deepseek_v4 import attention as v4, compressor as v4_compressor
    from vllm.models.deepseek_v41 import attention as v41, compressor as v41_compressor
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.model_executor.models import deepseek_v2

    return SimpleNamespace(**locals())


def config_of(asked: dict[str, Any], engine: SimpleNamespace, dtype: str) -> SimpleNamespace:
    """What the planner reads of a ``VllmConfig``; V3.2 keeps every layer's blocks together."""
    layout = engine.kv_cache_interface.KVCacheLayout
    chosen = layout.LBNHC if asked["kind"] == "flat" else layout.BLHNC
    cache = SimpleNamespace(
        block_size=asked["block"],
        cache_dtype=dtype,
        num_gpu_blocks_override=None,
        prefix_cache_retention_interval=None,
        get_resolved_kv_cache_layout=lambda: chosen,
    )
    return SimpleNamespace(
        cache_config=cache,
        model_config=SimpleNamespace(max_model_len=asked["context"], dtype=engine.torch.bfloat16),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        attention_config=SimpleNamespace(hisparse_config=None, indexer_sparse_logits=False),
        speculative_config=None,
        max_in_flight_tokens=asked["flight"],
    )


def specs_of(asked: dict[str, Any], engine: SimpleNamespace) -> tuple[dict[str, Any], Any]:
    """Specs by the layers' own methods, with the attributes that ``__init__`` gives them."""
    major = asked["capability"] // 10
    platform = SimpleNamespace(
        is_device_capability_family=lambda family: family // 10 == major, is_rocm=lambda: False
    )
    for module in (engine.v4, engine.v41, engine.flashmla_sparse):
        module.current_platform = platform
    make = {"flat": _flat_specs, "v4": _v4_specs, "v41": _v41_specs}[asked["kind"]]
    return make(asked, engine)


def _flat_specs(asked, engine):
    backend = engine.flashmla_sparse.FlashMLASparseBackend
    dtype = engine.mla_attention._canonicalize_sparse_mla_kv_cache_dtype(backend, asked["dtype"])
    config = config_of(asked, engine, dtype)
    layer = SimpleNamespace(
        kv_cache_dtype=dtype, head_size=576, sliding_window=None, topk_buffer_width=2048,
        indexer=object(), non_causal_multi_token_decode=False,
    )  # fmt: skip
    keys = SimpleNamespace(
        head_dim=FP8_KEY, dtype=engine.torch.uint8, cache_config=config.cache_config
    )
    main = engine.mla_attention.MLAAttention.get_kv_cache_spec
    indexer = engine.deepseek_v2.DeepseekV32IndexerCache.get_kv_cache_spec
    specs = {}
    for n in range(asked["layers"] + asked["drafts"]):
        specs[f"{n}.attn"] = backend.customize_spec(main(layer, config))
        if n in asked["selecting"] or n >= asked["layers"]:
            specs[f"{n}.indexer"] = indexer(keys, config)
    return specs, config


def _resolve(asked, module, config, packed="fp8_ds_mla"):
    arguments = (not asked["plain"], asked["dtype"], config.cache_config)
    more = (packed,) if module.__name__.endswith("v41.attention") else ()
    return module._resolve_dsv4_kv_cache_dtype(*arguments, *more)


def _v4_specs(asked, engine):
    config = config_of(asked, engine, asked["dtype"])
    dtype, torch_dtype = _resolve(asked, engine.v4, config)
    owners = [n for n, ratio in enumerate(asked["ratios"][: asked["layers"]]) if ratio]
    specs = {}
    for n in range(asked["layers"] + asked["drafts"]):
        specs |= _window_spec(n, config, engine, torch_dtype, 64, {})
        if n not in owners:
            continue
        ratio = asked["ratios"][n]
        layer = SimpleNamespace(
            compress_ratio=ratio, head_dim=512, kv_cache_dtype=dtype,
            kv_cache_torch_dtype=torch_dtype,
        )  # fmt: skip
        specs[f"{n}.attn"] = engine.v4.DeepseekV4Attention.get_kv_cache_spec(layer, config)
        states = [("state", 2048 if ratio == 4 else 1024)]
        if ratio == 4:
            specs |= _key_spec(n, asked, config, engine, engine.v4)
            states.append(("indexer.state", 512))
        for name, dim in states:
            state = SimpleNamespace(
                state_dim=dim, dtype=engine.torch.float32, prefix=f"{n}.{name}",
                block_size=4 if ratio == 4 else 8, sliding_window=8 if ratio == 4 else 128,
                compress_ratio=ratio,
            )  # fmt: skip
            method = engine.v4_compressor.CompressorStateCache.get_kv_cache_spec
            specs[f"{n}.{name}"] = method(state, config)
    return specs, config


def _v41_specs(asked, engine):
    config = config_of(asked, engine, asked["dtype"])
    packed = "nvfp4_ds_mla" if asked["mega"] else "fp8_ds_mla"
    dtype, torch_dtype = _resolve(asked, engine.v41, config, packed)
    mxfp8 = engine.v41._use_v41_mxfp8_kv_record()
    window = 528 if mxfp8 else 584
    compressed = 288 if dtype == "nvfp4_ds_mla" else window
    page = 512 if mxfp8 else 576
    more = {
        "packed_bytes_per_token": window,
        "packed_page_alignment": page,
        "packed_block_stride_alignment": math.lcm(window, compressed) if mxfp8 else None,
        "bounded_replay": True,
    }
    rows = asked["draft_tokens"] + 2
    specs = {}
    for n in range(asked["layers"] + asked["drafts"]):
        specs |= _window_spec(n, config, engine, torch_dtype, 32, more)
        if n not in asked["owners"]:
            continue
        ratio = asked["ratios"][n]
        layer = SimpleNamespace(
            is_kv_source=True, compress_ratio=ratio, head_dim=512, kv_cache_dtype=dtype,
            kv_cache_torch_dtype=torch_dtype, compressed_bytes_per_token=compressed,
            kv_page_alignment=page,
        )  # fmt: skip
        specs[f"{n}.attn"] = engine.v41.DeepseekV4Attention.get_kv_cache_spec(layer, config)
        specs |= _key_spec(n, asked, config, engine, engine.v41)
        if ratio == 2:
            ring = SimpleNamespace(
                state_dim=1024, dtype=engine.torch.float32,
                block_size=max(8, 1 << (rows - 1).bit_length()),
            )  # fmt: skip
            method = engine.v41_compressor.CompressorStateCache.get_kv_cache_spec
            specs[f"{n}.state"] = method(ring, config)
    return specs, config


def _window_spec(n, config, engine, torch_dtype, block, more):
    default = {
        "packed_bytes_per_token": 584, "packed_page_alignment": 576,
        "packed_block_stride_alignment": None, "bounded_replay": False,
    }  # fmt: skip
    layer = SimpleNamespace(
        cache_config=config.cache_config, block_size=block, head_dim=512, dtype=torch_dtype,
        window_size=128, **(default | more),
    )  # fmt: skip
    return {f"{n}.swa": engine.sparse_swa.DeepseekV4SWACache.get_kv_cache_spec(layer, config)}


def _key_spec(n, asked, config, engine, module):
    layer = SimpleNamespace(
        cache_config=config.cache_config, head_dim=FP4_KEY if asked["mxfp4"] else FP8_KEY,
        dtype=engine.torch.uint8, compress_ratio=asked["ratios"][n], sparse_logits=False,
        rocm_mxfp4=False,
    )  # fmt: skip
    return {f"{n}.indexer": module.DeepseekV4IndexerCache.get_kv_cache_spec(layer, config)}


def _pages(spec, config):
    if hasattr(spec, "max_memory_usage_pages"):
        return spec.max_memory_usage_pages(config)
    return -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)


def answer(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What the planner makes of a setting."""
    planning = engine.kv_cache_planning
    specs, config = specs_of(asked, engine)
    groups = planning.get_kv_cache_groups(config, specs)
    block_bytes = planning._pool_bytes_per_block(config, groups)
    memory = asked["memory"]
    made = engine.kv_cache_interface.KVCacheConfig(
        num_blocks=memory // block_bytes, kv_cache_tensors=[], kv_cache_groups=groups
    )
    concurrency = engine.kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, made)
    counts = [_pages(group.kv_cache_spec, config) for group in groups]
    return {
        "block_bytes": block_bytes,
        "request_blocks": sum(counts),
        "needed_bytes": block_bytes * sum(counts),
        "blocks": made.num_blocks,
        "printed_tokens": int(concurrency * asked["context"]),
        "group_tokens": sorted(group.kv_cache_spec.block_size for group in groups),
    }


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
