"""Functions with the parameters and habits of other packages' ones, and our arithmetic.

What the real ones assert about their arguments these assert too, and more: that an index is
never outside, and that no two threads would write one row.
"""

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.storage import PageStore

caches_seen: list[Tensor] = []
"""Every cache a function was called with."""


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
    _gather(out, k_cache, seq_lens, gather_lens, block_table, block_size, offset)


def flaggems_gather(
    out: Tensor,
    k_cache: Tensor,
    seq_lens: Tensor,
    gather_lens: Tensor | None,
    block_table: Tensor,
    block_size: int,
    offset: int = 0,
    rope_dim: int = 64,
    nope_dim: int | None = None,
    scale_slots: int | None = None,
) -> None:
    """FlagGems' ``dequantize_and_gather_k_cache``: it would copy pages of three dimensions."""
    assert k_cache.ndim == 2
    assert (rope_dim, nope_dim, scale_slots) == (64, None, None)
    _gather(out, k_cache, seq_lens, gather_lens, block_table, block_size, offset)


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


def sglang_gather_of_next_row(
    quant_k_cache: Tensor,
    page_table_1_flattened: Tensor,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """The same, off by one row."""
    most = len(quant_k_cache) * page_size - 1
    following = (page_table_1_flattened + 1).clamp(max=most)
    return sglang_gather(quant_k_cache, following, page_size, out=out)


def _gather(
    out: Tensor,
    k_cache: Tensor,
    seq_lens: Tensor,
    gather_lens: Tensor | None,
    block_table: Tensor,
    block_size: int,
    offset: int,
) -> None:
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


def _store(cache: Tensor, block_size: int) -> PageStore:
    layout = PageLayout(FORMATS["main"]["fp8_ds_mla"], block_size)
    assert cache.dtype == torch.uint8
    assert cache.stride(0) == layout.page_bytes
    caches_seen.append(cache)
    shape, strides = (len(cache), layout.page_bytes), (layout.page_bytes, 1)
    return PageStore(layout, cache.as_strided(shape, strides))
