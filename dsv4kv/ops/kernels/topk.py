"""Launch plans of selections: a block for each run of a row, then one for each row's runs.

Lengths are read on the device, so a captured launch follows them; room for scores and choices is
fixed in the plan.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.kernels.example import CHOICES, REQUESTS, WIDTH, Example, empty, numbers
from dsv4kv.ops.kernels.launch import KernelModule, Launch

RUN = 32_768
"""Most columns of a run: 128 KiB of scores, which a multiprocessor's L1 holds."""

_THREADS = 512


def runs_of(columns: int) -> int:
    """Runs that a row of so many columns is chosen from in."""
    return max(1, -(-columns // RUN))


def scratch_shape(columns: int, out: Tensor) -> tuple[int, ...]:
    """Shape of the scratch memory that a top-k of so many columns needs: empty for one run."""
    runs = runs_of(columns)
    return (2, len(out), runs if runs > 1 else 0, out.shape[1])


def plan_select_topk(
    scores: Tensor,
    lengths: Tensor,
    blocks: Tensor | None,
    table: Tensor,
    slots: Tensor,
    page_entries: int,
    out: Tensor,
    entries: Tensor,
    *,
    scratch: Tensor | None = None,
) -> tuple[Launch, ...]:
    """See ``contract.Backend.select_topk``; to be launched in this order.

    scratch: int32[``scratch_shape``], where runs meet; what it holds does not matter before or
    after. None for one of its own.
    """
    columns, candidates = scores.shape[1], 0 if blocks is None else blocks
    block_entries = 0 if blocks is None else columns // max(blocks.shape[1], 1)
    macros = ("DSV_BLOCK_ENTRIES", block_entries), ("DSV_PAGE_ENTRIES", page_entries)
    found = _scratch(scratch, columns, out)
    places = (lengths, candidates, table, slots, out, entries, *found)
    sizes = (columns, out.shape[1], *table.shape)
    module, runs = KernelModule("topk.cuh", macros), runs_of(columns)
    select = Launch(module, "select_topk", (len(out), runs), _THREADS, (scores, *places, *sizes))
    merge = Launch(module, "merge_topk", (len(out), 1), _THREADS, (*places, runs, *sizes))
    return _launches(out, select, merge)


def plan_select_blocks(
    scores: Tensor,
    lengths: Tensor,
    block_entries: int,
    out: Tensor,
    *,
    scratch: Tensor | None = None,
) -> tuple[Launch, ...]:
    """See ``contract.Backend.select_blocks``; to be launched in this order.

    scratch: as for ``plan_select_topk``, of as many columns as there are blocks.
    """
    module = KernelModule("candidates.cuh", (("DSV_BLOCK_ENTRIES", block_entries),))
    columns, most = scores.shape[1], out.shape[1]
    blocks = -(-columns // block_entries)
    runs, chosen = runs_of(blocks), _scratch(scratch, blocks, out)
    arguments = (scores, lengths, out, *chosen, columns, most)
    select = Launch(module, "select_blocks", (len(out), runs), _THREADS, arguments)
    merge = Launch(module, "merge_blocks", (len(out), 1), _THREADS, (out, *chosen, runs, most))
    return _launches(out, select, merge)


def _scratch(given: Tensor | None, columns: int, out: Tensor) -> tuple[Tensor | int, Tensor | int]:
    """Where the runs of rows meet; from torch's cache, so mostly no allocation."""
    if runs_of(columns) == 1:
        return 0, 0
    if given is None:
        shape = scratch_shape(columns, out)
        given = torch.empty(shape, dtype=torch.int32, device=out.device)
    return given[0, : len(out)], given[1, : len(out)]


def _launches(out: Tensor, select: Launch, merge: Launch) -> tuple[Launch, ...]:
    if not out.numel():
        return ()
    return (select, merge) if select.grid[1] > 1 else (select,)


def examples(config: DSV4Config, main: PageLayout) -> Iterator[Example]:
    """Rows of several runs; of V4.1 blocks of entries, and entries of some blocks, too."""
    columns, slots = 2 * RUN, numbers(REQUESTS)
    choices = empty(torch.int32, REQUESTS, CHOICES)
    given, table = empty(torch.float32, REQUESTS, columns), empty(torch.int32, REQUESTS, WIDTH)
    size = config.candidates.block_entries if config.candidates else 0
    for blocks in (0, size) if size else (0,):
        candidates = empty(torch.int32, REQUESTS, columns // blocks) if blocks else None
        of = f"of blocks of {blocks}, " if blocks else ""
        pages = table, slots, main.entries, choices, choices
        for launch in plan_select_topk(given, slots, candidates, *pages):
            yield Example(f"{of}pages of {main.entries}", launch)
    if size:
        given = empty(torch.float32, REQUESTS, columns * size)
        for launch in plan_select_blocks(given, slots, size, choices):
            yield Example(f"of {size}", launch)
