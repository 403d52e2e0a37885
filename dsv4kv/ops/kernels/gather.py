"""Launch plans of gathers: one warp an entry, ``unroll`` of them at once.

Slots, lengths, tables and indices are read on the device, so a captured launch follows them; the
sizes of outputs and tables are fixed in the plan. Anything out of range gives zeros.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.kernels.example import (
    CHOICES,
    REQUESTS,
    WIDTH,
    Example,
    Promise,
    empty,
    numbers,
    pages_of,
    title,
    values_for,
)
from dsv4kv.ops.kernels.launch import (
    MOST_BLOCKS,
    WARP,
    KernelModule,
    Launch,
    blocks_for,
    format_macros,
    multiprocessors,
)
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import VARIANTS, portable

UNROLL = {"ahead": 4, "stepwise": 2}
"""Steps a warp has in flight, 1, 2 or 4, by variant; half of them where a lane has more than two
chunks of an entry, or registers do not do."""

RESIDENT_BLOCKS = 4
"""Blocks that a multiprocessor holds, what its registers allow: the grid of ``ahead``."""

_THREADS = 256
_ROUNDS = 4  # blocks for each place on the GPU, so that the last ones to run are few
_CHANNELS_PER_LANE = 8

PROMISES = {
    "gather_*": Promise(stores=128),
    "gather_topk fp8_ds_mla*": Promise(loads=128, under_way=8),  # its bf16 tail; e4m3 goes 64 bits
    "gather_all fp8_ds_mla*": Promise(loads=128, under_way=8),
    "gather_entries fp8_ds_mla*": Promise(loads=128, under_way=8),
    "gather_* fp8_ds_mla*, ahead": Promise(under_way=16),
    "gather_window fp8_*": Promise(loads=64),
}
"""See ``catalogue.PROMISES``."""


def plan_gather_topk(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    indices: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    variant: str = portable("gather_topk"),
    unroll: int | None = None,
) -> Launch:
    """See ``contract.Backend.gather_topk``."""
    sizes = (*indices.shape, *table.shape, len(store.pages))
    arguments = (store.pages, table, slots, indices, lengths, out, *sizes)
    return _plan("gather_topk", store, out, arguments, variant, unroll)


def plan_gather_all(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    variant: str = portable("gather_all"),
    unroll: int | None = None,
) -> Launch:
    """See ``contract.Backend.gather_all``; entries from M on are left out.

    Rows after the largest length are left as they are.
    """
    sizes = (*out.shape[:2], *table.shape, len(store.pages))
    return _plan(
        "gather_all",
        store,
        out,
        (store.pages, table, slots, lengths, out, *sizes),
        variant,
        unroll,
    )


def plan_gather_window(
    ring: PageStore,
    slots: Tensor,
    tokens: Tensor,
    out: Tensor,
    *,
    variant: str = portable("gather_window"),
    unroll: int | None = None,
) -> Launch:
    """See ``contract.Backend.gather_window``."""
    sizes = (*out.shape[:2], len(ring.pages))
    return _plan(
        "gather_window", ring, out, (ring.pages, slots, tokens, out, *sizes), variant, unroll
    )


def plan_gather_entries(
    store: PageStore,
    entries: Tensor,
    out: Tensor,
    *,
    variant: str = portable("gather_topk"),
    unroll: int | None = None,
) -> Launch:
    """Dequantise physical entries int32[n] into out bf16[n, D]; −1 gives zeros."""
    arguments = (store.pages, entries, out, len(entries), len(store.pages))
    return _plan("gather_entries", store, out, arguments, variant, unroll)


def _plan(
    kernel: str,
    store: PageStore,
    out: Tensor,
    arguments: tuple[Tensor | int, ...],
    variant: str,
    unroll: int | None,
) -> Launch:
    dims = store.layout.format.dims
    lanes = min(WARP, dims // _CHANNELS_PER_LANE)
    ahead, long = variant == "ahead", dims > 2 * WARP * _CHANNELS_PER_LANE
    macros = (
        *format_macros(store.layout),
        ("DSV_AHEAD", int(ahead)),
        ("DSV_UNROLL", unroll or UNROLL[variant] // (2 if long else 1)),
    )
    most = RESIDENT_BLOCKS * multiprocessors(store.pages) if ahead else MOST_BLOCKS * _ROUNDS
    blocks = blocks_for(out.numel() // dims, _THREADS // lanes, most)
    module = KernelModule("gather.cuh", tuple(sorted(macros)))
    return Launch(module, kernel, (blocks, 1), _THREADS, arguments)


def window_examples(layout: PageLayout) -> Iterator[Example]:
    """Reads of a ring."""
    ring, slots = pages_of(layout), numbers(REQUESTS)
    out = values_for(ring, REQUESTS, layout.entries)
    for variant in VARIANTS["gather_window"]:
        read = plan_gather_window(ring, slots, slots, out, variant=variant)
        yield Example(f"{title(layout)}, {variant}", read)


def page_examples(layout: PageLayout) -> Iterator[Example]:
    """Reads of pages: entries by index, all of a request, physical ones."""
    store, slots = pages_of(layout), numbers(REQUESTS)
    table = empty(torch.int32, REQUESTS, WIDTH)
    choices = empty(torch.int32, REQUESTS, CHOICES)
    out = values_for(store, REQUESTS, CHOICES)
    for variant in VARIANTS["gather_topk"]:  # those of the other gathers, too
        for launch in (
            plan_gather_topk(store, table, slots, choices, slots, out, variant=variant),
            plan_gather_all(store, table, slots, slots, out, variant=variant),
            plan_gather_entries(store, choices[0], out[0], variant=variant),
        ):
            yield Example(f"{title(layout)}, {variant}", launch)
