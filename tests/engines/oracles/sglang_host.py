# mypy: ignore-errors
# ruff: noqa: F401, PLR0402
# It runs in the engine's environment, where nothing is typed.
"""SGLang 0.5.23's own HiCache: host pools of its real device pools, all without memory.

``python sglang_host.py FOLDER < settings > answers`` in an environment of its own; FOLDER holds
the unpacked wheel. A line is one setting: ``kind``, ``ratios``, ``owners``, ``held`` (first layer
and the one after the last), ``mega`` (V4.1's records), ``backend``, ``fp4`` (indexer keys of V4),
``hip`` (an AMD GPU), ``encoder``, ``full`` and ``window`` (slots of the GPU's pools), ``drafts``
(layers), ``draft_tokens``, ``state``, ``host_ratio`` (null for none), ``size`` (GB, 0 for none),
``layout``, ``memory`` (bytes that are free on the node), ``ranks`` (of the node); for V3.2
``dim`` (channels of an entry) and ``item`` (bytes of one). The answer: of every pool its name,
pages, bytes of a page, bytes, and bytes of its staging buffer on the GPU; or ``refused``, the
engine's sentence; of V4 and V4.1 ``sent``: bytes of a page, of a page of windows (without drafts)
and of pending entries that a decode side is sent.
Source: ``srt/mem_cache/{deepseek_v4_memory_pool,memory_pool,memory_pool_host,hicache_auto_size,
hybrid_cache/hybrid_pool_assembler}.py``, ``srt/mem_cache/pool_host``.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_ins import answer_lines, open_packages

MEMORY = "sglang.srt.mem_cache"
REAL = (
    "sglang.srt.environ",
    "sglang.kernels.ops.attention.dsv4.kv_layout",
    *(
        f"{MEMORY}.{name}"
        for name in (
            "base_swa_memory_pool",
            "deepseek_v4_compress_state",
            "deepseek_v4_memory_pool",
            "device_pool_info",
            "hicache_auto_size",
            "hicache_key_scheme",
            "hicache_storage",
            "host_memory",
            "hybrid_cache.host_pool_config",
            "hybrid_cache.hybrid_pool_assembler",
            "index_key_cache",
            "memory_pool",
            "memory_pool_host",
            "pool_host",
            "unified_cache.component_type",
        )
    ),
)


def load(folder: Path) -> SimpleNamespace:
    """The engine's modules."""
    open_packages(folder, REAL, "triton", "torch_npu", "sgl_kernel")
    import sglang.srt.mem_cache.utils as memory_utils
    import sglang.srt.utils as utils
    import sglang.srt.utils.common as common
    import sglang.srt.utils.torch_memory_saver_adapter as saver
    import torch

    platforms = ("is_hip", "is_npu", "is_cuda", "is_xpu", "is_cpu", "is_mps", "is_gfx95_supported")
    for name in platforms:
        setattr(utils, name, lambda: False)
        setattr(common, name, lambda: False)
    for module in (utils, common):
        module.ceil_align = lambda value, size: -(-value // size) * size
        module.ceil_div = lambda value, size: -(-value // size)
    saver.TorchMemorySaverAdapter.create = staticmethod(
        lambda *_, **__: SimpleNamespace(region=lambda *_, **__: nullcontext())
    )
    memory_utils.maybe_init_custom_mem_pool = lambda *_, **__: (False, None, None)
    import sglang.srt.layers.attention.dsa.utils as sparse

    sparse.aiter_can_use_preshuffle_paged_mqa = lambda: False
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pools
    from sglang.srt.mem_cache import hicache_auto_size as auto
    from sglang.srt.mem_cache import memory_pool as plain
    from sglang.srt.mem_cache import memory_pool_host as host
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
    from sglang.srt.mem_cache.pool_host import base, common, dsa, mla

    return SimpleNamespace(**locals())


def configure(engine: SimpleNamespace, asked: dict[str, Any]) -> None:
    """Let what the engine asks of its runtime be a setting's."""
    sized = bool(asked["host_ratio"] or asked["size"])
    memory = SimpleNamespace(
        hicache_ratio=asked["host_ratio"] or 2.0, hicache_size=asked["size"],
        hicache_mem_layout=asked["layout"], hicache_write_policy="write_through",
        hicache_io_backend="kernel", hicache_host_memory_mode="cache",
        hicache_host_memory_fraction=None if sized else 0.8,
    )  # fmt: skip
    kernel = SimpleNamespace(
        dsv4_attn_backend=asked["backend"], enable_deepseek_v4_fp4_indexer=asked["fp4"]
    )
    features = SimpleNamespace(enable_encoder_swa_bounded_replay=asked["encoder"])
    graph = SimpleNamespace(cuda_graph_config=None)
    drafts = asked["draft_tokens"]
    spec = SimpleNamespace(
        speculative_algorithm="EAGLE" if drafts else None, speculative_num_draft_tokens=drafts
    )
    parallel = SimpleNamespace(
        attn_dcp_size=1, attn_tp_size=1, dcp_enabled=False, launch_world_size=asked["ranks"],
        nnodes=1,
    )  # fmt: skip
    import sglang.srt.layers.attention.dsv4.unified_kv_gate as gate
    import sglang.srt.mem_cache.dsv41_request_window as windows
    import sglang.srt.runtime_context as runtime
    import sglang.srt.speculative.spec_info as speculation

    windows.RequestWindow = lambda *_, **__: SimpleNamespace()
    gate.is_unified_kv_triton = gate.is_unified_kv_fp8 = lambda: False
    speculation.SpeculativeAlgorithm.from_string = lambda _: SimpleNamespace(
        is_dspark=lambda: asked["encoder"]
    )
    modules = (engine.pools, engine.plain, engine.host, engine.auto, engine.assembler, engine.base)
    for module in (*modules, engine.dsa, engine.mla, runtime):
        module.get_spec = lambda: spec
        module.get_exec = lambda: SimpleNamespace(kernel=kernel, features=features, graph=graph)
        module.get_memory = lambda: memory
        module.get_parallel = lambda: parallel
        module.get_platform = lambda: SimpleNamespace(is_sm120=False)
        module.get_schedule = lambda: SimpleNamespace(chunked_prefill_size=8192)
        module.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
        module.get_context = lambda: SimpleNamespace(
            override=lambda _, **fields: memory.__dict__.update(fields)
        )
    engine.assembler.HybridCacheController = lambda *_, **__: None
    engine.pools._is_hip = asked["hip"]
    engine.pools.DSV41_INDEX_PAGE_SIZE = 128 if asked["mega"] else 64
    for module in (engine.mla, engine.dsa):
        module.can_use_hicache_jit_kernel = module.can_use_write_back_jit_kernel = lambda **_: (
            False
        )
    free = [asked["memory"]]
    engine.base.ranks_per_host = engine.auto.ranks_per_host = lambda: asked["ranks"]
    engine.base.available_host_memory_bytes = lambda **_: free[0]

    def allocate(shape, dtype, **_):
        """Every rank of the node takes as much, all in step."""
        buffer = engine.torch.empty(shape, dtype=dtype, device="meta")
        free[0] -= buffer.nbytes * asked["ranks"]
        return buffer

    for device in ("meta", "cpu"):
        engine.common.ALLOC_MEMORY_FUNCS[device] = allocate


def v4_pool(engine: SimpleNamespace, asked: dict[str, Any]) -> Any:
    """The engine's device pool of V4 and V4.1."""
    first, last = asked["held"]
    full, window = asked["full"], asked["window"]
    state = {"fp32": engine.torch.float32, "bf16": engine.torch.bfloat16}[asked["state"]]
    ring = 16 if asked["draft_tokens"] else 8
    return engine.pools.DeepSeekV4TokenToKVPool(
        max_num_reqs=16, num_req_slots=17, swa_size=window, c4_size=full // 4,
        c128_size=-(-full // 128), c4_state_pool_size=window // 256 * ring,
        c128_state_pool_size=17 * 128, page_size=256, swa_page_size=256, sliding_window=128,
        dtype=engine.torch.float8_e4m3fn, c4_state_dtype=state, c128_state_dtype=state,
        qk_nope_head_dim=448, qk_rope_head_dim=64, indexer_head_dim=128,
        layer_num=last - first, device="meta", enable_memory_saver=False,
        compression_ratios=asked["ratios"], start_layer=first, end_layer=last,
        online_mtp_max_draft_tokens=asked["draft_tokens"], unified_fp8=False,
        kv_source_layers=asked["owners"], full_size=full,
        kv_layout="v41" if asked["mega"] else "v4",
    )  # fmt: skip


def flat_pool(engine: SimpleNamespace, asked: dict[str, Any], layers: int) -> Any:
    """The engine's device pool of V3.2."""
    dtype = {1: engine.torch.float8_e4m3fn, 2: engine.torch.bfloat16}[asked["item"]]
    return engine.plain.DSATokenToKVPool(
        asked["full"], 64, kv_lora_rank=512, dtype=dtype, qk_rope_head_dim=64, layer_num=layers,
        device="meta", index_head_dim=128, enable_memory_saver=False,
        kv_cache_dim=asked["dim"], start_layer=0, end_layer=layers,
    )  # fmt: skip


def build(engine: SimpleNamespace, asked: dict[str, Any]) -> list[Any]:
    """The host pools' entries of a setting."""
    made: list[Any] = []
    engine.assembler.HostPoolGroup = lambda entries: made.extend(entries) or made
    flat = asked["kind"] == "flat"
    params = SimpleNamespace(
        page_size=64 if flat else 256, tp_cache_group=None, attn_cp_cache_group=None,
        attn_tp_cache_group=None, pp_cache_group=None, req_to_token_pool=None,
    )  # fmt: skip
    if flat:
        pool = flat_pool(engine, asked, asked["held"][1])
        params.mtp_draft_device_pools = (flat_pool(engine, asked, 1),) * asked["drafts"]
    else:
        pool = v4_pool(engine, asked)
        rows = engine.torch.empty((2, 2), device="meta")
        draft = SimpleNamespace(swa_kv_pool=SimpleNamespace(kv_buffer=[rows] * asked["drafts"]))
        params.mtp_draft_device_pools = (draft,) if asked["drafts"] else ()
    params.token_to_kv_pool_allocator = SimpleNamespace(
        size_full=asked["full"], swa_attn_allocator=SimpleNamespace(alloc=None, free=None),
        c128_attn_allocator=None, get_kvcache=lambda: pool,
    )  # fmt: skip
    with engine.auto.auto_size_hicache(params, None, enabled=True):
        if flat:
            config = engine.assembler.prepare_host_pool_config(
                decls=pool.host_pool_decls(),
                full_layer_mapping={i: i for i in range(pool.layer_num)},
                transfer_layer_id_max=pool.layer_num,
                transfer_page_size=params.page_size,
                packed_draft_device_pools=params.mtp_draft_device_pools,
            )
            engine.assembler.build_host_pool_group(config=config)
        else:
            engine.assembler.build_deepseek_v4_hicache_stack(
                params=params, kvcache=pool, load_cache_event=None, storage_backend=None
            )
    return made


def size(entry: Any) -> list[Any]:
    """Name, pages, bytes of a page, bytes, bytes of staging."""
    pool = entry.host_pool
    buffers = getattr(pool, "kv_buffer", None)
    if buffers is None:
        buffers = getattr(pool, "index_k_with_scale_buffer", [])
    held = sum(each.nbytes for each in (buffers if isinstance(buffers, list) else [buffers]))
    pages = pool.size // pool.page_size
    staging = getattr(pool, "staging_buffer", None)
    return [entry.name.value, pages, held // pages, held, getattr(staging, "nbytes", 0)]


def answer(engine: SimpleNamespace, asked: dict[str, Any]) -> dict[str, Any]:
    """What the engine makes of a setting."""
    configure(engine, asked)
    sent = {} if asked["kind"] == "flat" else {"sent": sent_of(v4_pool(engine, asked))}
    try:
        return {"pools": [size(entry) for entry in build(engine, asked)]} | sent
    except ValueError as error:
        return {"refused": str(error)} | sent


def sent_of(pool: Any) -> list[int]:
    """Bytes that the decode side is sent: of a page, of a page of windows, of what is pending."""
    pool.request_window = None  # its rows, which have no memory here, are paged like the others
    kinds = (
        pool.get_contiguous_buf_infos,
        pool.get_state_buf_infos,
        pool.get_request_state_buf_infos,
    )
    return [sum(kind()[2]) for kind in kinds]


if __name__ == "__main__":
    engine = load(Path(sys.argv[1]))
    answer_lines(lambda asked: answer(engine, asked))
