"""Launch plans of compressor states: tokens in, entries out.

Entries have the same bits whatever ``split`` is, and whether their tokens came one by one or in a
chunk.
"""

import struct

from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.kernels.launch import MOST_BLOCKS, WARP, KernelModule, Launch, blocks_for
from dsv4kv.ops.kernels.macros import format_macros
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import portable

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
) -> Launch:
    """See ``contract.Backend.state_append``."""
    threads = kv.numel() // _FLOATS_PER_THREAD
    return Launch(
        _state_module(compressor, state),
        "state_append",
        (blocks_for(threads, _THREADS, MOST_BLOCKS), 1),
        _THREADS,
        (state, kv, score, compressor.ape, slots, positions, len(slots), len(state)),
    )


def plan_flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str = portable("flush"),
    split: int = 1,
    scratch: Tensor | None = None,
) -> tuple[Launch, ...]:
    """See ``contract.Backend.flush``; to be launched in this order.

    An entry of −1 skips its row, so a graph can pass every token of a step.
    variant: see ``ops.variants``.
    split: blocks that share an entry, 1, 2, 4 or 8; ``split_of`` suggests it. A cluster always
    has 8.
    scratch: float32[at least E, d], needed where split is more than 1, the state a ring and the
    variant no cluster; what it holds does not matter before or after.
    """
    if not len(entries):
        return ()
    groups = slots, positions, entries
    limits = len(state), store.num_entries, compressor.groups
    split = _blocks_with_scratch(compressor, variant, split)
    module = _flush_module(compressor, state, store, variant, split)
    if state.dim() == 3:  # pooled already
        finish = _finish(module, "flush_finish", state, groups, compressor, store, limits)
        return (finish,)
    pooled = _scratch(scratch, split)
    arguments = (state, *groups, *finish_parameters(compressor), pooled, store.pages, *limits)
    pool = _pool(module, "flush", len(entries), compressor, variant, split, arguments)
    if split == 1:
        return (pool,)
    return pool, _finish(module, "flush_finish", pooled, groups, compressor, store, limits)


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
    split: int = 1,
    scratch: Tensor | None = None,
) -> tuple[Launch, ...]:
    """See ``contract.Backend.compress_chunk``; to be launched in this order.

    The chunk's numbers lie on the device, so that a graph can be replayed for another chunk.
    chunk: int64[3], slot, start and tokens; numbers that cannot be do nothing.
    kv, score: float32[most tokens, C].
    entries: int64[most groups], of the groups that end in the chunk, at most ceil(tokens / ratio);
    what follows them is not read.
    variant, split, scratch: as for ``plan_flush``.
    """
    rows = kv, score, compressor.ape, chunk
    limits = len(kv), len(state), store.num_entries, compressor.groups
    launches = [_keep(compressor, state, kv, score, chunk)]
    if len(entries):
        split = _blocks_with_scratch(compressor, variant, split)
        module = _flush_module(compressor, state, store, variant, split)
        pooled = _scratch(scratch, split)
        if split > 1:
            groups = (chunk, entries)
            launches.insert(
                0, _finish(module, "chunk_finish", pooled, groups, compressor, store, limits)
            )
        finish = *finish_parameters(compressor), pooled, store.pages
        arguments = (state, *rows, entries, *finish, *limits)
        pool = _pool(module, "chunk_flush", len(entries), compressor, variant, split, arguments)
        launches.insert(0, pool)
    return tuple(launches)


def _keep(
    compressor: Compressor, state: Tensor, kv: Tensor, score: Tensor, chunk: Tensor
) -> Launch:
    """What the chunk leaves in the state; last, for the entries need the state as it was."""
    if state.dim() == 3:
        threads = WARP * compressor.dim // _warp_channels(compressor)
    else:
        threads = state.shape[2] * compressor.channels // _FLOATS_PER_THREAD
    return Launch(
        _state_module(compressor, state),
        "state_keep",
        (blocks_for(threads, _THREADS, MOST_BLOCKS), 1),
        _THREADS,
        (state, kv, score, compressor.ape, chunk, len(kv), len(state)),
    )


def _pool(
    module: KernelModule,
    kernel: str,
    groups: int,
    compressor: Compressor,
    variant: str,
    split: int,
    arguments: tuple[Tensor | int, ...],
) -> Launch:
    if not (shared_bytes := cluster_bytes(compressor, variant)):
        return Launch(module, kernel, (groups, split), pool_threads(compressor, split), arguments)
    return Launch(
        module,
        kernel,
        (groups, _RUNS),
        compressor.dim // _FLOATS_PER_THREAD,
        arguments,
        cluster=_RUNS,
        shared_bytes=shared_bytes,
    )


def _finish(
    module: KernelModule,
    kernel: str,
    pooled: Tensor | int,
    groups: tuple[Tensor, ...],
    compressor: Compressor,
    store: PageStore,
    limits: tuple[int, ...],
) -> Launch:
    count = len(groups[-1])
    return Launch(
        module,
        kernel,
        (-(-count * WARP // _FINISH_THREADS), 1),
        _FINISH_THREADS,
        (pooled, *groups, *finish_parameters(compressor), store.pages, count, *limits),
    )


def finish_parameters(compressor: Compressor) -> tuple[Tensor | int, ...]:
    """What turns pooled channels into an entry, as kernels take it."""
    (eps_bits,) = struct.unpack("<I", struct.pack("<f", compressor.norm_eps))
    return compressor.norm_weight, compressor.rope, eps_bits


def cluster_bytes(compressor: Compressor, variant: str) -> int:
    """Shared memory of each of the blocks that pool an entry as a cluster; 0 if none do.

    A block has a run of rows, kv and score, and less than five numbers a channel of what it
    exchanges with the others.
    """
    if variant != "cluster" or compressor.rows <= _SHORT_ROWS:
        return 0
    return 4 * compressor.dim * (2 * compressor.rows // _RUNS + 5)


def _blocks_with_scratch(compressor: Compressor, variant: str, split: int) -> int:
    """Blocks that meet in scratch: a cluster is, in this respect, one."""
    return 1 if cluster_bytes(compressor, variant) else split


def _scratch(scratch: Tensor | None, split: int) -> Tensor | int:
    if split == 1:
        return 0
    if scratch is None:
        raise ConfigError(f"{split} blocks share an entry: give them scratch, or split = 1.")
    return scratch


def _warp_channels(compressor: Compressor) -> int:
    runs = _RUNS if compressor.rows > _SHORT_ROWS else 1
    return _FLOATS_PER_THREAD * WARP // runs


def pool_threads(compressor: Compressor, split: int) -> int:
    """Threads of each of ``split`` blocks that pool an entry; raises ``ConfigError``."""
    warps = compressor.dim // _warp_channels(compressor)
    if split not in (1, 2, 4, 8) or warps % split:
        raise ConfigError(
            f"{split} blocks cannot share {warps} warps' channels of an entry: "
            "split is 1, 2, 4 or 8 and divides them."
        )
    return min(warps // split, _MOST_WARPS) * WARP


def _state_macros(compressor: Compressor, state: Tensor) -> dict[str, int]:
    return {
        "DSV_DIMS": compressor.dim,
        "DSV_OVERLAP": int(compressor.overlap),
        "DSV_RATIO": compressor.ratio,
        "DSV_STATE_ROWS": state.shape[2] if state.dim() == 4 else 0,
    }


def _state_module(compressor: Compressor, state: Tensor) -> KernelModule:
    return KernelModule("state.cuh", tuple(sorted(_state_macros(compressor, state).items())))


def _flush_module(
    compressor: Compressor, state: Tensor, store: PageStore, variant: str, split: int
) -> KernelModule:
    macros = flush_macros(compressor, state, store, variant, split)
    return KernelModule("flush.cuh", tuple(sorted(macros.items())))


def flush_macros(
    compressor: Compressor, state: Tensor, store: PageStore, variant: str, split: int
) -> dict[str, int]:
    """Everything ``flush.cuh`` needs to know, by name."""
    macros = dict(format_macros(store.layout)) | _state_macros(compressor, state)
    macros |= {
        "DSV_AHEAD": int(variant != "serial"),
        "DSV_CLUSTER_BYTES": cluster_bytes(compressor, variant),
        "DSV_HADAMARD": int(compressor.hadamard),
        "DSV_ROPE_PAIRS": compressor.rotated_pairs,
        "DSV_ROPE_TABLE": int(compressor.has_table),
        "DSV_SPLIT": split,
    }
    return macros
