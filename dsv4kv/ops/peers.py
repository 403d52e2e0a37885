"""Packages whose kernels read or write the same cache, as operations of the table.

Each function imports a package and wraps its kernels. What a call adds to the kernel (rows of the
table, lengths as int32, physical indices, zeros) is part of it; docs/backends.md lists it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.registry import Foreign, Function, find_function
from dsv4kv.ops.storage import Entries, PageStore
from dsv4kv.processes import version_of

_ENTRY_BYTES = 584  # of fp8_ds_mla
_MLA = ("fp8_ds_mla",)


def vllm() -> Foreign:
    """vLLM: gather by request and insert, of its DeepSeek-V4 cache utilities (seen in 0.33).

    A gather of chosen entries it has only inside attention kernels, so ``gather_topk`` is missing.
    """
    module = "vllm.models.deepseek_v4.common.ops.cache_utils"
    gather, insert = (
        find_function("vllm", {"vllm": "vllm"}, [f"{module}:{name}"])[0]
        for name in ("dequantize_and_gather_k_cache", "quantize_and_insert_k_cache")
    )

    def paged(store: PageStore, out: Tensor, *requests: Any) -> None:
        shape = (len(store.pages), store.layout.entries, _ENTRY_BYTES)
        cache = store.pages.as_strided(shape, (store.layout.page_bytes, _ENTRY_BYTES, 1))
        gather(out, cache, *requests, store.layout.entries, 0)

    def entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> None:
        inside = (entries >= 0) & (entries < store.num_entries)
        insert(values, store.pages, entries.where(inside, -1), store.layout.entries)

    def window_insert(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
        size = ring.layout.entries
        rows = (slots * size + positions % size).where(slots >= 0, -1)
        if len(rows) > size:  # a token is replaced at once where its slot has one a ring later
            rows[:-size].masked_fill_(slots[:-size] == slots[size:], -1)
        insert(values, ring.pages, rows, size)

    # It reads the last ``gather_lens`` of ``seq_lens`` entries of every request, all if None, by
    # rows of a block table, and writes nothing else: zeros come first, as lengths are known on
    # the device only.
    def gather_all(
        store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        out.zero_()
        paged(store, out, lengths.int(), None, table[slots])

    def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        size = ring.layout.entries
        # A ring is a request whose blocks are all the same one: two of them hold any window.
        length = tokens.where(tokens < size, size + tokens % size)
        gathered = tokens.clamp(max=out.shape[1])
        out.zero_()
        paged(ring, out, length.int(), gathered.int(), slots.int()[:, None].repeat(1, 2))

    found: dict[str, Function] = {"gather_all": gather_all, "gather_window": gather_window}
    found |= {"entry_insert": entry_insert, "window_insert": window_insert}
    return Foreign(found, version_of("vllm"), _MLA)


def sglang() -> Foreign:
    """SGLang: a gather by physical index, of its DeepSeek-V4 prefill (seen in 0.5.23).

    It reads every index it is given and writes every output row, so missing ones read entry 0 and
    are zeroed afterwards. Its insert writes for −1 too, outside the pool, and is not used.
    """
    place = "sglang.kernels.ops.attention.dsv4.dequant_k_cache:dequantize_k_cache_paged_dsv4"
    gather, _ = find_function("sglang", {"sglang": "sglang"}, [place])

    def gather_entries(store: PageStore, entries: Tensor, valid: Tensor, out: Tensor) -> None:
        """Entries int64[B, K] where bool[B, K] says so, zeros elsewhere: out bf16[B, K, 512]."""
        chosen = entries.where(valid, 0).view(-1)
        gather(store.pages, chosen, store.layout.entries, out=out.view(-1, 1, out.shape[-1]))
        out.masked_fill_(~valid[:, :, None], 0)

    def gather_topk(store: PageStore, *asked: Tensor) -> None:
        *requests, out = asked
        gather_entries(store, *cpu.chosen_entries(store, *requests), out)

    def gather_all(
        store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        indices = torch.arange(out.shape[1], device=out.device).expand(len(slots), -1)
        gather_topk(store, table, slots, indices, lengths, out)

    def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        gather_entries(ring, *cpu.window_entries(ring, slots, tokens, out.shape[1]), out)

    found: dict[str, Function] = {"gather_topk": gather_topk, "gather_all": gather_all}
    return Foreign(found | {"gather_window": gather_window}, version_of("sglang"), _MLA)


def deepgemm() -> Foreign:
    """DeepGEMM: an indexer's scores of FP8 keys (sgl-deep-gemm 0.2.5, vLLM 0.33.0's copy).

    On Hopper, of pages of 64 keys. Each query token is a request of its own, as in SGLang 0.5.23.
    Blocks are picked from the scores of all keys, which is what engines do where they have no
    kernel for chosen blocks.
    """
    packages = {"deep_gemm": "sgl-deep-gemm", "vllm": "vllm"}
    modules = ("deep_gemm", "vllm.third_party.deep_gemm")
    names = ("fp8_fp4_paged_mqa_logits", "get_paged_mqa_logits_metadata", "get_num_sms")
    (kernel, distribution), (plan, _), (multiprocessors, _) = (
        find_function("deepgemm", packages, [f"{module}:{name}" for module in modules])
        for name in names
    )

    def index_scores(
        store: PageStore,
        table: Tensor,
        slots: Tensor,
        lengths: Tensor,
        queries: Tensor,
        weights: Tensor,
        blocks: Tensor | None,
        out: Tensor,
    ) -> None:
        size, entry_bytes = store.layout.entries, store.layout.format.entry_bytes
        seen = lengths.where(slots >= 0, 0).int()[:, None]
        some = seen.clamp(min=1)  # no row is empty; the one key is left out of the result
        rows = table[slots].masked_fill_(seen == 0, 0)
        width = table.shape[1] * size if blocks is not None else out.shape[1]
        scores = kernel(
            (queries.view(torch.float8_e4m3fn)[:, None], None),
            store.pages.view(-1, size, 1, entry_bytes),
            weights,
            some,
            rows,
            plan(some, size, multiprocessors()),
            width,
        )
        keys = torch.arange(width, device=out.device)
        scores = scores[:, :width].float().masked_fill_(keys >= seen, -math.inf)
        out.copy_(scores if blocks is None else _picked(scores, blocks, out.shape[1]))

    return Foreign({"index_scores": index_scores}, version_of(distribution), ("fp8",))


def _picked(scores: Tensor, blocks: Tensor, width: int) -> Tensor:
    """Scores of the keys of chosen blocks, −inf where there is none: float32[T, width]."""
    within = torch.arange(width // blocks.shape[1], device=scores.device)
    keys = (blocks.long()[:, :, None] * len(within) + within).flatten(1)
    valid = (keys >= 0) & (keys < scores.shape[1])
    return scores.gather(1, keys.where(valid, 0)).masked_fill_(~valid, -math.inf)


def flashmla() -> Foreign:
    """FlashMLA: attention to window and compressed entries (sgl-flash-mla 1.0.0, vLLM 0.33.0's).

    It takes every entry by its physical index, in rows of 64, and a plan, as lengths may have
    changed since the last call.
    """
    packages = {"flash_mla": "sgl-flash-mla", "vllm": "vllm"}
    modules = ("flash_mla.flash_mla_interface", "vllm.third_party.flashmla.flash_mla_interface")
    (kernel, distribution), (plan, _) = (
        find_function("flashmla", packages, [f"{module}:{name}" for module in modules])
        for name in ("flash_mla_with_kvcache", "get_mla_metadata")
    )

    def attend(
        ring: PageStore,
        slots: Tensor,
        tokens: Tensor,
        window: int,
        entries: Entries | None,
        queries: Tensor,
        sinks: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        recent, valid = cpu.window_entries(ring, slots, tokens, window)
        found, sums = kernel(
            queries[:, None],
            _pages(ring),
            None,
            None,
            out.shape[-1],
            plan()[0],
            softmax_scale=scale,
            is_fp8_kvcache=True,
            indices=_rows(recent.where(valid & (slots[:, None] >= 0), -1)),
            attn_sink=sinks,
            extra_k_cache=_pages(entries.store) if entries else None,
            extra_indices_in_kvcache=_compressed(entries, slots) if entries else None,
        )
        out.copy_(found[:, 0])
        lse.copy_(sums[:, :, 0])

    return Foreign({"attend": attend}, version_of(distribution), _MLA)


def _pages(store: PageStore) -> Tensor:
    """The pool itself as uint8[pages, entries, 1, 584]: the kernels know where rows are in it."""
    size, stride = store.layout.entries, store.layout.page_bytes
    shape = (len(store.pages), size, 1, _ENTRY_BYTES)
    return store.pages.as_strided(shape, (stride, _ENTRY_BYTES, _ENTRY_BYTES, 1))


def _compressed(entries: Entries, slots: Tensor) -> Tensor:
    indices, seen = entries.indices, entries.lengths.where(slots >= 0, 0)
    if indices is None:
        most = entries.table.shape[1] * entries.store.layout.entries
        indices = torch.arange(most, device=slots.device).expand(len(slots), -1)
    physical, valid = cpu.chosen_entries(entries.store, entries.table, slots, indices, seen)
    return _rows(physical.where(valid, -1))


def _rows(indices: Tensor) -> Tensor:
    """int32[T, 1, K], K the next multiple of 64."""
    spare = -indices.shape[1] % 64
    return torch.nn.functional.pad(indices.int(), (0, spare), value=-1)[:, None]
