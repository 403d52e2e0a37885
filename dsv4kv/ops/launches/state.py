"""Launch plans of compressor states: tokens in, entries out.

Entries have the same bits whatever ``split`` is, and whether their tokens came one by one or in a
chunk.
"""

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops import launches as la
from dsv4kv.ops.spec import portable
from dsv4kv.ops.storage import Compressor, PageStore, Parts, PartWrite

_THREADS = 256
_FINISH_THREADS = 128  # flush_finish, chunk_finish: a warp each entry
_FLOATS_PER_THREAD = 4

# As kernels/fold.cuh cuts an entry: 8 runs of rows in a warp where there are more than 16 rows.
_SHORT_ROWS, _RUNS = 16, 8
_MOST_WARPS = 16  # of a block that pools; with more each would have few registers
_BLOCK_READS_BYTES = 64 << 10


def split_of(compressor: Compressor) -> int:
    """Blocks that share an entry: one for every 64 KiB to read (CSA 1, HCA 8)."""
    return max(1, compressor.rows * compressor.dim * 8 // _BLOCK_READS_BYTES)


def plan_state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> la.Launch:
    """``state_append``."""
    module = la.KernelModule.of("state.cuh", _state_macros(compressor, state))
    grid = la.blocks_for(kv.numel() // _FLOATS_PER_THREAD, _THREADS, la.most_blocks(kv)), 1
    arguments = (state, kv, score, compressor.ape, slots, positions, len(slots), len(state))
    return la.Launch(module, "state_append", grid, _THREADS, arguments)


def plan_flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str = portable("flush"),
    split: int | None = None,
    scratch: Tensor | None = None,
) -> tuple[la.Launch, ...]:
    """``flush``; to be launched in this order.

    An entry of −1 skips its row, so a graph can pass every token of a step.
    variant: see ``ops.spec``.
    split: blocks that share an entry, 1, 2, 4 or 8; None for ``split_of``. A cluster always has 8.
    scratch: float32[at least E, d], where blocks that are no cluster meet; what it holds does not
    matter before or after. None for one of its own.
    """
    if not len(entries):
        return ()
    groups = slots, positions, entries
    limits = len(state), store.num_entries, compressor.groups
    pool = None if state.dim() == 3 else "flush"  # online: pooled already
    kernels, how = (pool, "flush_finish"), (variant, split, scratch)
    return _plan_entries(*kernels, compressor, state, groups, groups, store, limits, how)


def plan_compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    chunk: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str = portable("compress_chunk"),
    split: int | None = None,
    scratch: Tensor | None = None,
) -> tuple[la.Launch, ...]:
    """``compress_chunk``; to be launched in this order.

    The chunk's numbers are on the device, so that a graph can be replayed for another chunk.
    chunk: int64[3], slot, start and tokens; numbers that cannot be do nothing.
    kv, score: float32[most tokens, C].
    entries: int64[most groups], of the groups that end in the chunk, at most ceil(tokens / ratio);
    what follows them is not read.
    variant, split, scratch: as for ``plan_flush``.
    """
    kernels = "chunk_flush", "chunk_finish"
    rows, groups = (kv, score, compressor.ape, chunk, entries), (chunk, entries)
    limits = len(kv), len(state), store.num_entries, compressor.groups
    how = variant, split, scratch
    made: tuple[la.Launch, ...] = ()
    if len(entries):
        made = _plan_entries(*kernels, compressor, state, rows, groups, store, limits, how)
    # what the chunk leaves in the state; last, for the entries need the state as it was
    if state.dim() == 3:
        threads = la.WARP * compressor.dim // _warp_channels(compressor)
    else:
        threads = state.shape[2] * compressor.channels // _FLOATS_PER_THREAD
    module = la.KernelModule.of("state.cuh", _state_macros(compressor, state))
    grid = la.blocks_for(threads, _THREADS, la.most_blocks(kv)), 1
    arguments = (state, kv, score, compressor.ape, chunk, len(kv), len(state))
    return *made, la.Launch(module, "state_keep", grid, _THREADS, arguments)


def _plan_entries(
    pool: str | None,
    finish: str,
    compressor: Compressor,
    state: Tensor,
    rows: tuple[Tensor, ...],
    groups: tuple[Tensor, ...],
    store: PageStore,
    limits: tuple[int, ...],
    how: tuple[str, int | None, Tensor | None],
) -> tuple[la.Launch, ...]:
    """Kernels that pool and finish entries; a block alone, or a cluster, does both."""
    variant, split, scratch = how
    shared, count = cluster_bytes(compressor, variant), len(groups[-1])
    split = 1 if shared else split_of(compressor) if split is None else split
    module = la.KernelModule.of(
        "flush.cuh", flush_macros(compressor, state, store, variant, split)
    )
    parameters, launches = finish_parameters(compressor), list[la.Launch]()
    pooled: Tensor | int = state
    if pool:
        pooled = 0 if scratch is None or split == 1 else scratch
        if split > 1 and scratch is None:  # from torch's cache, so mostly no allocation
            pooled = torch.empty(count, compressor.dim, device=state.device)
        arguments = (state, *rows, *parameters, pooled, store.pages, *limits)
        grid, threads, cluster = (count, _RUNS), compressor.dim // _FLOATS_PER_THREAD, _RUNS
        if not shared:
            grid, threads, cluster = (count, split), pool_threads(compressor, split), 1
        launches.append(la.Launch(module, pool, grid, threads, arguments, False, cluster, shared))
    if split > 1 or not pool:
        grid = -(-count * la.WARP // _FINISH_THREADS), 1
        given = (pooled, *groups, *parameters, store.pages, count, *limits)
        launches.append(la.Launch(module, finish, grid, _FINISH_THREADS, given))
    return tuple(launches)


def finish_parameters(compressor: Compressor) -> tuple[Tensor | int, ...]:
    """What turns pooled channels into an entry, as kernels take it."""
    return compressor.norm_weight, compressor.rope, la.float_bits(compressor.norm_eps)


def cluster_bytes(compressor: Compressor, variant: str) -> int:
    """Shared memory of each of the blocks that pool an entry as a cluster; 0 if none do.

    A block has a run of rows, kv and score, and less than five numbers a channel of what it
    exchanges with the others.
    """
    if variant != "cluster" or compressor.rows <= _SHORT_ROWS:
        return 0
    return 4 * compressor.dim * (2 * compressor.rows // _RUNS + 5)


def _warp_channels(compressor: Compressor) -> int:
    runs = _RUNS if compressor.rows > _SHORT_ROWS else 1
    return _FLOATS_PER_THREAD * la.WARP // runs


def pool_threads(compressor: Compressor, split: int) -> int:
    """Threads of each of ``split`` blocks that pool an entry; raises ``ConfigError``."""
    warps = compressor.dim // _warp_channels(compressor)
    if split not in (1, 2, 4, 8) or warps % split:
        raise ConfigError(
            f"{split} blocks cannot share {warps} warps' channels of an entry: "
            "split is 1, 2, 4 or 8 and divides them."
        )
    return min(warps // split, _MOST_WARPS) * la.WARP


def _state_macros(compressor: Compressor, state: Tensor) -> dict[str, int]:
    return {
        "DSV_DIMS": compressor.dim,
        "DSV_OVERLAP": int(compressor.overlap),
        "DSV_RATIO": compressor.ratio,
        "DSV_STATE_ROWS": state.shape[2] if state.dim() == 4 else 0,
    }


def flush_macros(
    compressor: Compressor, state: Tensor, store: PageStore, variant: str, split: int
) -> dict[str, int]:
    """Everything ``flush.cuh`` needs to know, by name."""
    macros = la.format_macros(store.layout) | _state_macros(compressor, state)
    macros |= finish_macros(compressor) | {
        "DSV_AHEAD": int(variant != "serial"),
        "DSV_CLUSTER_BYTES": cluster_bytes(compressor, variant),
        "DSV_SPLIT": split,
    }
    return macros


def finish_macros(compressor: Compressor) -> dict[str, int]:
    """What ``finish.cuh`` needs to know in addition to the format, by name."""
    return {
        "DSV_HADAMARD": int(compressor.hadamard),
        "DSV_RATIO": compressor.ratio,
        "DSV_ROPE_PAIRS": compressor.rotated_pairs,
        "DSV_ROPE_TABLE": int(compressor.has_table),
        "DSV_ROUND_NORM": int(compressor.round_norm),
        "DSV_ROUND_ROPE": int(compressor.round_rope),
    }


def plan_norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> la.Launch:
    """``norm_rope_insert``."""
    macros = la.format_macros(store.layout) | finish_macros(compressor)
    module, count = la.KernelModule.of("norm_rope.cuh", macros), len(entries)
    grid = max(1, -(-count * la.WARP // _FINISH_THREADS)), 1
    numbers = *finish_parameters(compressor), count, store.num_entries, compressor.groups
    arguments = (store.pages, values, positions, entries, *numbers)
    return la.Launch(module, "norm_rope_insert", grid, _FINISH_THREADS, arguments)


_PREFIXES = ("MAIN", "KEYS")
_MOST_HELPERS = 128  # threads of a block that append: with more, few blocks find room


def split_of_write(part: PartWrite) -> int:
    """Blocks that share an entry: of a ring as for ``flush``; an online state needs one."""
    return split_of(part.compressor) if part.state.dim() == 4 else 1


def plan_step_write(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
    *,
    scratch: Tensor | None = None,
    arrivals: Tensor | None = None,
) -> la.Launch:
    """``step_write``.

    scratch: float32[at least T, d], needed where blocks share an entry (``split_of_write`` is more
    than 1); what it holds does not matter before or after.
    arrivals: int32[at least T], needed there too: zeros, and zeros again afterwards.
    """
    main, indexer, split = parts[0], len(parts) > 1, split_of_write(parts[0])
    if any(len(part.state) != len(ring.pages) for part in parts):
        raise ConfigError("a step is written to a ring and to states of as many slots.")
    if split > 1 and (scratch is None or arrivals is None):
        raise ConfigError(f"{split} blocks share an entry: give them scratch and arrivals.")
    threads = la.WARP if main.state.dim() == 3 else pool_threads(main.compressor, split)
    helpers = 0  # threads that append a block's channels while others pool
    if main.state.dim() == 4:
        fours = main.compressor.channels // split // _FLOATS_PER_THREAD
        helpers = min(_MOST_HELPERS, -(-fours // la.WARP) * la.WARP)
    macros = {"DSV_HELPERS": helpers, "DSV_INDEXER": int(indexer)}
    macros |= la.prefixed("WINDOW", la.format_macros(ring.layout) | {"DSV_PAIRED": 0})
    for prefix, part in zip(_PREFIXES, parts, strict=False):
        own = flush_macros(
            part.compressor, part.state, part.store, portable("flush"), split_of_write(part)
        )
        macros |= la.prefixed(prefix, own)
    meeting = (0, 0) if scratch is None or arrivals is None else (scratch, arrivals)
    arguments = [ring.pages, values, slots, positions, len(slots), len(ring.pages), *meeting]
    for part in parts:
        compressor, store = part.compressor, part.store
        arguments += [part.state, part.kv, part.score, compressor.ape, part.entries]
        arguments += [*finish_parameters(compressor), store.pages]
        arguments += [store.num_entries, compressor.groups]
    module, grid = la.KernelModule.of("step_write.cuh", macros), max(1, len(slots) * len(parts))
    block = threads + helpers + la.WARP
    return la.Launch(module, "step_write", (grid, split), block, tuple(arguments))
