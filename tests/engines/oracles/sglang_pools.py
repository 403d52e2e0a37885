# mypy: ignore-errors
# ruff: noqa: F401, PLR0402
# It runs in the engine's environment, where nothing is typed.
"""SGLang's own pool configurators, of 0.5.21 to 0.5.23: full tokens and pools from the memory.

``python sglang_pools.py FOLDER < settings > answers`` in an environment of its own; FOLDER holds
the unpacked wheel. A line is one setting: ``kind``, ``ratios``, ``owners``, ``layers``, ``held``
(first layer and the one after the last), ``mega`` (V4.1's records), ``requests`` (the limit, null
for none), ``ratio`` (of windows, null for none), ``page``, ``chunk``, ``context``,
``draft_tokens``, ``overlap``, ``prefix_cache``, ``role`` (``prefill``, ``decode``, null),
``extra_slots`` (of the decode side), ``hisparse`` (its ratio, 1 for none), ``state`` (``fp32``,
``bf16``), ``memory``; for V3.2 ``dim`` (of an entry) and ``item`` (bytes of a channel). The
answer: bytes of a full token, full tokens, slots of the window pool. With ``rank`` and ``stages``
of a pipeline and ``dp`` ranks of attention it is what the start prints, too: its ``lines``, and
the text of its ``refusal``.
Source: ``srt/model_executor/pool_configurator.py``, ``srt/mem_cache/deepseek_v4_memory_pool.py``.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines, open_packages

REAL = (
    "sglang.srt.environ",
    "sglang.srt.model_executor.pool_configurator",
    "sglang.srt.mem_cache.deepseek_v4_memory_pool",
    "sglang.kernels.ops.attention.dsv4.kv_layout",
)
GATES = (
    "sglang.srt.layers.attention.dsv4.unified_kv_gate",
    "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.env_gate",  # up to 0.5.22
)


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    open_packages(folder, REAL, "triton", "msgspec", "torch_npu")
    import sglang.srt.utils.common as common

    common.ceil_align = lambda value, size: -(-value // size) * size
    common.ceil_div = lambda value, size: -(-value // size)
    common.is_hip = common.is_npu = lambda: False
    import sglang.srt.utils as utils

    for name in ("is_hip", "is_npu", "is_cuda", "is_xpu", "is_cpu"):
        setattr(utils, name, lambda: False)
    utils.ceil_align, utils.ceil_div = common.ceil_align, common.ceil_div
    import torch
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as memory
    from sglang.srt.model_executor import pool_configurator as pools

    return SimpleNamespace(**locals())


def configure(engine: SimpleNamespace, asked: dict[str, Any]) -> Any:
    """A configurator of a setting."""
    pools, memory = engine.pools, engine.memory
    drafts = asked["draft_tokens"]
    spec = SimpleNamespace(
        speculative_algorithm="EAGLE" if drafts else None,
        speculative_num_draft_tokens=drafts or None,
        speculative_num_steps=max(drafts - 1, 0),
        speculative_eagle_topk=1,
    )
    ratio = asked["ratio"]
    schedule = SimpleNamespace(
        max_running_requests=asked["requests"],
        chunked_prefill_size=asked["chunk"],
        disable_overlap_schedule=not asked["overlap"],
        swa_prefix_tails=None,
        swa_full_tokens_ratio=ratio or 0.1,
        _swa_full_tokens_ratio_explicitly_set=ratio is not None,
        max_total_tokens=None,
    )
    execution = SimpleNamespace(
        kernel=SimpleNamespace(
            dsv4_attn_backend="flashmla_mega" if asked["mega"] else "flashmla",
            enable_deepseek_v4_fp4_indexer=False,
        ),
        features=SimpleNamespace(enable_encoder_swa_bounded_replay=asked["encoder"]),
    )
    cached = SimpleNamespace(
        disable_radix_cache=not asked["prefix_cache"], enable_unified_memory=False,
        enable_hisparse=asked.get("hisparse", 1) > 1,
    )  # fmt: skip
    split = SimpleNamespace(
        disaggregation_mode=asked.get("role") or "null",
        disaggregation_decode_extra_slots=asked.get("extra_slots", 0),
    )
    for module in (pools, memory):
        module.get_spec = lambda: spec
        module.get_schedule = lambda: schedule
        module.get_exec = lambda: execution
        module.get_memory = lambda: cached
        module.get_disagg = lambda: split
        module.get_parallel = lambda: SimpleNamespace(attn_dcp_size=1, attn_tp_size=1)
    memory.DSV41_INDEX_PAGE_SIZE = 128 if asked["mega"] else 64
    pools.max_speculative_num_draft_tokens = lambda: drafts or None
    pools.get_alloc_len_per_decode = lambda: drafts
    pools.spec_decode_alloc_len_per_request = lambda page_size, **_: (
        -(-drafts // page_size) * page_size
    )
    pools.compute_page_shard_scratch_bytes = lambda *_, **__: 0
    engine.torch.cuda.is_available = lambda: asked["mega"]
    engine.torch.version.cuda = "13.0"
    engine.torch.cuda.get_device_capability = lambda: (10, 0)
    for name in GATES:
        try:
            gate = importlib.import_module(name)
        except ImportError:
            continue
        gate.is_unified_kv_triton = gate.is_unified_kv_fp8 = lambda: False
    sparse = SimpleNamespace(host_to_device_ratio=asked.get("hisparse", 1))
    sys.modules["sglang.srt.mem_cache.sparsity"] = SimpleNamespace(
        parse_hisparse_config=lambda: sparse
    )
    engine.envs.SGLANG_DSV4_COMPRESS_STATE_DTYPE.set(asked["state"])
    model = SimpleNamespace(
        qk_nope_head_dim=448, qk_rope_head_dim=64, index_head_dim=128, window_size=128,
        context_len=asked["context"], compress_ratios=asked["ratios"],
        hf_config=SimpleNamespace(kv_source_layer_ids=asked["owners"]),
    )  # fmt: skip
    first, last = asked["held"]
    algorithm = SimpleNamespace(
        is_dspark=lambda: bool(drafts) and asked["encoder"],
        is_eagle=lambda: bool(drafts),
        is_none=lambda: not drafts,
    )
    runner = SimpleNamespace(
        kv_cache_dtype_str="fp8_e4m3", model_config=model, page_size=asked["page"],
        layer_info=SimpleNamespace(start_layer=first, end_layer=last),
        pp_size=asked.get("stages", 1), attn_dp_size=asked.get("dp", 1),
        pp_group=SimpleNamespace(rank_in_group=asked.get("rank", 0)),
        sliding_window_size=128, spec_algorithm=algorithm, is_draft_worker=False,
        spec_aux_config=SimpleNamespace(dspark_num_stages=asked["drafts"]),
    )  # fmt: skip
    if asked["kind"] != "flat":
        return pools.DSV4PoolConfigurator(runner)
    return _flat(engine, asked)


def _flat(engine, asked):
    """V3.2's cell by the formulas of its configurator: entries and keys of every layer."""
    pools = engine.pools
    kind = pools.DefaultPoolConfigurator
    made = object.__new__(kind)
    made.kv_cache_dtype_str = "auto"
    made._fixed_overhead_bytes, made._zero_kv_max_tokens = 0, 0
    pools.get_dsa_index_head_dim = lambda _: 128
    pools.get_dsa_index_kpool = lambda _: 1
    pools.DSATokenToKVPool.quant_block_size = 128
    pools.DSATokenToKVPool.index_k_with_scale_buffer_dtype = engine.torch.uint8
    layers = asked["layers"]
    runner = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=None), server_args=None, is_draft_worker=False
    )
    keys = kind._compute_dsa_indexer_cell_size(
        made, kvc=runner, num_layers=layers, allocate_all_layers=True
    )
    made._cell_size = asked["dim"] * asked["item"] * layers + keys
    return made


def answer(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What the configurator makes of a setting; no pools where it refuses."""
    configurator = configure(engine, asked)
    if asked["kind"] == "flat":
        sizes = configurator.calculate_pool_sizes(asked["memory"], asked["page"])
        cell = configurator._cell_size
        return {"token_bytes": cell, "full": sizes.max_total_num_tokens, "window": 0}
    try:
        sizes = configurator.calculate_pool_sizes(asked["memory"], asked["page"])
    except (RuntimeError, ValueError):
        return {"token_bytes": configurator.bytes_per_full_token, "full": None, "window": None}
    return {
        "token_bytes": configurator.bytes_per_full_token,
        "full": sizes.full_max_total_num_tokens,
        "window": sizes.swa_max_total_num_tokens,
    }


def start(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What a start prints of its pools, up to its refusal."""
    lines = []
    engine.pools.logger = SimpleNamespace(info=lines.append, warning=lines.append)
    answer = {"lines": lines, "refusal": None, "full": None, "window": None}
    try:
        sizes = configure(engine, asked).calculate_pool_sizes(asked["memory"], asked["page"])
    except (RuntimeError, ValueError) as error:
        return answer | {"refusal": str(error)}
    window = sizes.swa_max_total_num_tokens
    return answer | {"full": sizes.full_max_total_num_tokens, "window": window}


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: (start if "stages" in asked else answer)(engine, asked))
