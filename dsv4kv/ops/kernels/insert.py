"""Launch plans of inserts: one warp quantises and writes one entry, or two at once.

Where it has two under way, the grid is what a GPU holds at once: its blocks stay to the end, and
there is no last round with few of them.
"""

from collections.abc import Iterator

from torch import Tensor

from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.kernels.example import (
    REQUESTS,
    Example,
    Promise,
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

_THREADS = 256
_MOST_PAIRED_DIMS = 512
RESIDENT_BLOCKS = 4
"""Blocks that a multiprocessor holds in the ``resident`` variant: what its registers allow."""

PROMISES = {
    "entry_insert *": Promise(loads=128),
    "entry_insert fp8_ds_mla*": Promise(stores=64),  # the row of scales is 8 bytes
    "window_insert *": Promise(loads=128),
    "window_insert fp8_ds_mla*": Promise(stores=64),
    "indexer_insert *": Promise(loads=128),
    "page_copy *": Promise(loads=128, stores=128),
}
"""See ``catalogue.PROMISES``."""


def plan_window_insert(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    *,
    variant: str = portable("window_insert"),
) -> Launch:
    """See ``contract.Backend.window_insert``.

    Tokens of a slot must be consecutive in the call, by ascending position without gaps: then the
    token that replaces another in its ring row is a fixed distance further on, and no two warps
    write one row.
    """
    arguments = (ring.pages, values, slots, positions, len(slots), len(ring.pages))
    return _plan("window_insert", ring, len(slots), arguments, variant)


def plan_entry_insert(
    store: PageStore,
    values: Tensor,
    entries: Tensor,
    *,
    variant: str = portable("entry_insert"),
) -> Launch:
    """See ``contract.Backend.entry_insert``."""
    arguments = (store.pages, values, entries, len(entries), store.num_entries)
    return _plan("entry_insert", store, len(entries), arguments, variant)


def _plan(
    kernel: str,
    store: PageStore,
    count: int,
    arguments: tuple[Tensor | int, ...],
    variant: str,
) -> Launch:
    # Three chunks a lane of two entries are more than registers hold: V3.2's go one by one.
    resident = variant == "resident" and store.layout.format.dims <= _MOST_PAIRED_DIMS
    macros = (*format_macros(store.layout), ("DSV_PAIRED", int(resident)))
    most = RESIDENT_BLOCKS * multiprocessors(store.pages) if resident else MOST_BLOCKS
    return Launch(
        KernelModule("insert.cuh", tuple(sorted(macros))),
        kernel,
        (blocks_for(count, _THREADS // WARP, most), 1),
        _THREADS,
        arguments,
    )


def plan_indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> Launch:
    """See ``contract.Backend.indexer_insert``."""
    if not hadamard:
        return plan_entry_insert(store, keys, entries)
    return Launch(
        KernelModule("indexer.cuh", format_macros(store.layout)),
        "indexer_insert",
        (blocks_for(len(entries), _THREADS // WARP, MOST_BLOCKS), 1),
        _THREADS,
        (store.pages, keys, entries, len(entries), store.num_entries),
    )


_BYTES_PER_THREAD = 16


def plan_page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> Launch:
    """See ``contract.Backend.page_copy``."""
    page_bytes = store.layout.page_bytes
    threads = len(sources) * page_bytes // _BYTES_PER_THREAD
    return Launch(
        KernelModule("page_copy.cuh", (("DSV_PAGE_BYTES", page_bytes),)),
        "page_copy",
        (blocks_for(threads, _THREADS, MOST_BLOCKS), 1),
        _THREADS,
        (store.pages, sources, targets, len(sources), len(store.pages)),
    )


def window_examples(layout: PageLayout) -> Iterator[Example]:
    """Inserts into a ring."""
    ring, slots = pages_of(layout), numbers(REQUESTS)
    for variant in VARIANTS["window_insert"]:
        values = values_for(ring, REQUESTS)
        insertion = plan_window_insert(ring, values, slots, slots, variant=variant)
        yield Example(f"{title(layout)}, {variant}", insertion)


def entry_examples(layout: PageLayout) -> Iterator[Example]:
    """Inserts into pages."""
    store = pages_of(layout)
    values, entries = values_for(store, REQUESTS), numbers(REQUESTS)
    for variant in reversed(tuple(VARIANTS["entry_insert"])):  # where both are one, it is single
        insertion = plan_entry_insert(store, values, entries, variant=variant)
        yield Example(f"{title(layout)}, {variant}", insertion)


def key_examples(layout: PageLayout) -> Iterator[Example]:
    """Inserts of indexer keys."""
    store = pages_of(layout)
    insertion = plan_indexer_insert(store, values_for(store, REQUESTS), numbers(REQUESTS), True)
    yield Example(title(layout), insertion)


def copy_examples(layout: PageLayout) -> Iterator[Example]:
    """Copies of pages."""
    pages = numbers(REQUESTS)
    yield Example(title(layout), plan_page_copy(pages_of(layout), pages, pages))
