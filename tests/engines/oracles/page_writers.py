# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Pages as the engines' own kernels write them: ``python page_writers.py ENGINE PACKAGES FOLDER``.

FOLDER holds ``512.npy``, ``576.npy`` and ``128.npy``: the bits of bf16 rows, uint16[rows, dims].
A file of pages is written beside them for each record, uint8[pages, bytes of one]. Kernels in
Triton run in its interpreter, on a CPU.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from stand_ins import bare_package, stand_in

PAGE = 64


def blank(rows, row_bytes, align=1):
    """Pages of nothing for so many rows."""
    return torch.zeros(len(rows) // PAGE, -(-PAGE * row_bytes // align) * align, dtype=torch.uint8)


def tell(module, answers):
    """Let a module that looks for a GPU be one with these answers alone."""
    sys.modules[module] = SimpleNamespace(**answers)


class Generic:
    """A base class of anything."""

    def __class_getitem__(cls, _):
        return cls


def write_vllm(packages, rows):
    """By vLLM 0.33's ``cache_utils.quantize_and_insert_k_cache``."""
    import triton
    from triton import language

    ops = "vllm.models.deepseek_v4.common.ops"
    stand_in("vllm", real=[ops])
    bare_package(ops, f"{packages}/{ops.replace('.', '/')}")
    tell("vllm.triton_utils", {"triton": triton, "tl": language})
    helper = "vllm.model_executor.warmup.jit_warmup_triton_helper"
    classes = ("LaunchSpec", "TritonPointerInputVariant", "TritonWarmupTensor")
    classes += "VllmTritonJitKernel", "triton_scalar_specialization_rep"
    tell(helper, dict.fromkeys(classes, Generic))
    from vllm.models.deepseek_v4.common.ops.cache_utils import quantize_and_insert_k_cache

    main = blank(rows[512], 584, 576)
    quantize_and_insert_k_cache(rows[512], main, torch.arange(len(rows[512])), PAGE)
    return {"fp8_ds_mla of vllm": main}


def write_sglang(packages, rows):
    """By SGLang 0.5.23's stores, and the references of its tests for V4.1."""
    no = lambda: False  # noqa: E731
    fp8 = {"is_fp8_fnuz": no, "fp8_dtype": torch.float8_e4m3fn}
    preshuffled = {"aiter_can_use_preshuffle_paged_mqa": no, "INDEXER_K_CACHE_PRESHUFFLE_TILE": 0}
    tell("sglang.kernels.ops.quantization.fp8_kernel", fp8)
    stand_in("sglang.kernels.jit", "sglang.kernels.ops.attention.deep_select", "sglang.srt")
    bare_package(
        "sglang.kernels.ops.attention.dsv4", f"{packages}/sglang/kernels/ops/attention/dsv4"
    )
    tell("sglang.srt.utils", dict.fromkeys(("is_hip", "is_xpu", "is_gfx95_supported"), no))
    tell("sglang.srt.layers.attention.dsa.utils", preshuffled)
    from sglang.kernels.ops.kvcache import dsa_index_k_cache, dsv4_main_kv_store
    from sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache import store_fp4_index_k_cache
    from sglang.kernels.ops.quantization.act_quant_triton import act_quant
    from sglang.kernels.ops.quantization.dsa_quant_k_cache import quantize_k_cache
    from sglang.test.kernels.deepseek_v4 import dsv41_kv_quant_reference as v41
    from sglang.test.kernels.deepseek_v4.k_cache_reference import (
        quant_to_nope_fp8_rope_bf16_pack_triton as pack,
    )

    entries, latents, keys = rows[512], rows[576], rows[128]
    slots = torch.arange(len(entries))
    main = blank(entries, 584, 576)
    dsv4_main_kv_store._set_k_and_s_triton(main, slots, pack(entries), PAGE)
    codes, scales = act_quant(keys, 128, "ue8m0")
    fp8_keys = blank(keys, 132)
    dsa_index_k_cache._set_k_and_s_triton(fp8_keys, slots, codes, scales, PAGE)
    fp4_keys = blank(keys, 68)
    store_fp4_index_k_cache(keys, fp4_keys, slots, page_size=PAGE)
    paged = entries.reshape(-1, PAGE, 512)
    fp8, fp4 = v41.quantize_k_cache_v41(paged), v41.quantize_k_cache_v41_fp4(paged)
    flat = quantize_k_cache(latents.reshape(-1, PAGE, 1, 576))
    return {
        "fp8_ds_mla": main,
        "fp8": fp8_keys,
        "mxfp4": fp4_keys,
        "fp8_group32": fp8,
        "fp8_group32_interleaved": v41.interleave_pages(fp8, PAGE, 512, 16),
        "fp4": fp4,
        "fp4_interleaved": v41.interleave_pages(fp4, PAGE, 256, 32),
        "fp8_ds_mla of V3.2": flat.view(torch.uint8).reshape(len(flat), -1),
    }


if __name__ == "__main__":
    engine, packages, folder = sys.argv[1], *map(Path, sys.argv[2:])
    sys.path.insert(0, str(packages))
    bare_package(engine, str(packages / engine))
    bits = {dims: np.load(folder / f"{dims}.npy") for dims in (512, 576, 128)}
    rows = {dims: torch.from_numpy(each).view(torch.bfloat16) for dims, each in bits.items()}
    for name, pages in {"vllm": write_vllm, "sglang": write_sglang}[engine](
        packages, rows
    ).items():
        np.save(folder / f"{name}.npy", pages.numpy())
