"""Functions with the parameters and habits of other packages' ones, and our arithmetic.

What the real ones assert about their arguments these assert too, and more: that an index is
never outside, and that no two threads would write one row.
"""

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.storage import PageStore


def vllm_gather(
    out: Tensor,
    k_cache: Tensor,
    seq_lens: Tensor,
    gather_lens: Tensor | None,
    block_table: Tensor,
    block_size: int,
    offset: int,
    use_fnuz: bool = False,
) -> None:
    """vLLM's ``dequantize_and_gather_k_cache``: pages as [blocks, entries, 584]."""
    assert k_cache.shape[1:] == (block_size, 584)
    assert not use_fnuz
    assert out.dtype == torch.bfloat16
    assert seq_lens.dtype == block_table.dtype == torch.int32
    assert len(seq_lens) == len(block_table) == len(out)
    assert block_table.is_contiguous()
    assert gather_lens is None or gather_lens.dtype == torch.int32
    store = _store(k_cache, block_size)
    for b, length in enumerate(seq_lens.tolist()):
        count = length if gather_lens is None else int(gather_lens[b])
        assert length <= block_table.shape[1] * block_size
        positions = torch.arange(length - count, length, dtype=torch.int32)
        part = out[b : b + 1, offset : offset + count]
        slots, lengths = torch.tensor([b]), torch.tensor([length])
        cpu.gather_topk(store, block_table, slots, positions[None], lengths, part)


def vllm_insert(
    k: Tensor,
    k_cache: Tensor,
    slot_mapping: Tensor,
    block_size: int = 64,
    is_ue8m0: bool = True,
    use_fnuz: bool = False,
) -> None:
    """vLLM's ``quantize_and_insert_k_cache``: −1 skips, every other slot is written."""
    assert k.shape == (len(slot_mapping), 512)
    assert slot_mapping.dtype == torch.int64
    assert is_ue8m0
    assert not use_fnuz
    store = _store(k_cache, block_size)
    written = slot_mapping[slot_mapping != -1]
    assert len(set(written.tolist())) == len(written)
    assert bool(((written >= 0) & (written < store.num_entries)).all())
    cpu.entry_insert(store, k, slot_mapping)


def sglang_gather(
    quant_k_cache: Tensor,
    page_table_1_flattened: Tensor,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """SGLang's ``dequantize_k_cache_paged_dsv4``: it reads whatever it is told to."""
    assert quant_k_cache.is_contiguous()
    assert out is not None
    assert out.shape == (len(page_table_1_flattened), 1, 512)
    store, entries = _store(quant_k_cache, page_size), page_table_1_flattened.long()
    assert bool(((entries >= 0) & (entries < store.num_entries)).all())
    table = torch.arange(len(store.pages), dtype=torch.int32)[None]
    slots, lengths = torch.tensor([0]), torch.tensor([store.num_entries])
    cpu.gather_topk(store, table, slots, entries.int()[None], lengths, out.view(1, -1, 512))
    return out


def _store(cache: Tensor, block_size: int) -> PageStore:
    layout = PageLayout(FORMATS["main"]["fp8_ds_mla"], block_size)
    assert cache.dtype == torch.uint8
    assert cache.stride(0) == layout.page_bytes
    shape, strides = (len(cache), layout.page_bytes), (layout.page_bytes, 1)
    return PageStore(layout, cache.as_strided(shape, strides))


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: None,
    cache_seqlens: None,
    head_dim_v: int,
    tile_scheduler_metadata: str,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """FlashMLA's sparse decoding, as its tests/ref.py defines it: only −1 is no index."""
    assert (block_table, cache_seqlens, num_splits, causal) == (None, None, None, False)
    assert (tile_scheduler_metadata, is_fp8_kvcache, head_dim_v) == ("a plan", True, 512)
    assert indices is not None
    assert softmax_scale is not None
    assert attn_sink is not None
    scopes = [(k_cache, indices)]
    if extra_k_cache is not None:
        assert extra_indices_in_kvcache is not None
        scopes.append((extra_k_cache, extra_indices_in_kvcache))
    seen = [_entries(cache, chosen) for cache, chosen in scopes]
    values = torch.cat([each for each, _ in seen], dim=1)
    missing = torch.cat([each for _, each in seen], dim=1)
    logits = softmax_scale * (q[:, 0].double() @ values.transpose(1, 2))
    logits.masked_fill_(missing[:, None], -torch.inf)
    lse = logits.logsumexp(dim=2)
    out = (logits - lse[..., None]).exp() @ values
    out *= (1 / (1 + (attn_sink - lse).exp()))[..., None]
    nothing = lse == -torch.inf
    out[nothing], lse[nothing] = 0, torch.inf
    return out.bfloat16()[:, None], lse.float()[..., None]


def _entries(cache: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Entries float64[T, K, 512] of int32[T, 1, K], and which of them are missing."""
    pages, size, heads, entry_bytes = cache.shape
    assert (heads, entry_bytes, indices.dtype) == (1, 584, torch.int32)
    assert indices.shape[1] == 1
    assert indices.shape[2] % 64 == 0
    assert int(indices.max()) < pages * size
    assert int(indices.min()) >= -1
    page_bytes = cache.stride(0)
    layout = PageLayout(FORMATS["main"]["fp8_ds_mla"], size)
    store = PageStore(layout, cache.as_strided((pages, page_bytes), (page_bytes, 1)))
    values = torch.empty(indices.numel(), 512, dtype=torch.bfloat16)
    read = store.read(indices.long().clamp(min=0).flatten())
    cpu.decode(layout.format, *read, values)
    missing = indices[:, 0] < 0
    values = values.view(*missing.shape, 512).double()
    return values.masked_fill(missing[..., None], 0), missing


def get_mla_metadata() -> tuple[str, None]:
    """A plan for one call."""
    return "a plan", None


def fp8_fp4_paged_mqa_logits(
    q: tuple[Tensor, None],
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: str,
    max_context_len: int,
    indices: None = None,
) -> Tensor:
    """DeepGEMM's paged scores of FP8 keys on SM90: whatever is behind a row's keys stays."""
    (queries, scale), (pages, size, heads, key_bytes) = q, kv_cache.shape
    tokens, next_n, _, dims = queries.shape
    assert (next_n, scale, heads, key_bytes, size, indices) == (1, None, 1, 132, 64, None)
    assert schedule_meta == f"a plan of {tokens} rows for 132 multiprocessors"
    assert (context_lens.shape, context_lens.dtype) == ((tokens, 1), torch.int32)
    assert int(context_lens.min()) >= 1
    assert block_table.is_contiguous()
    out = torch.full((tokens, max_context_len), torch.nan)
    flat = kv_cache.view(pages, size * key_bytes)
    for t, length in enumerate(context_lens[:, 0].tolist()):
        rows = flat[block_table[t, : -(-length // size)].long()]
        codes, scales = rows[:, : size * dims], rows[:, size * dims :]
        keys = codes.reshape(-1, dims).view(torch.float8_e4m3fn).float()[:length]
        products = (queries[t, 0].float() @ keys.T).relu()
        scores = weights[t] @ products * scales.contiguous().view(torch.float32).flatten()[:length]
        out[t, : min(length, max_context_len)] = scores[:max_context_len]
    return out


def get_paged_mqa_logits_metadata(context_lens: Tensor, block_kv: int, num_sms: int) -> str:
    """A plan for one call."""
    assert block_kv == 64
    return f"a plan of {len(context_lens)} rows for {num_sms} multiprocessors"


def get_num_sms() -> int:
    """Of an H100."""
    return 132
