"""vLLM's prefix cache with DeepSeek-V4's groups, one request at a time, in chunks of prompt.

Compressed entries are one group; windows and compressor states are others, with smaller blocks
from the same pool. A hit ends at a whole block of context whose last window and state blocks are
all cached. Blocks behind the window are given back after every chunk; which of them stay cached is
the retention: every boundary, one in an interval, or only where a prompt ends and where a hit ran
out of windows. The blocks of one table that a hit needs at its end are taken for one entry, though
an engine may find some of them in an older copy and some in a newer.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.
"""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.group_pool import GroupHits, GroupPool, TailGroup
from dsv4kv.prefix.analysis.nodes import number_blocks
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.reuse import Reuse


def replay_vllm_groups(
    table: PathTable,
    reuse: Reuse,
    capacity_blocks: int,
    groups: tuple[TailGroup, ...],
    *,
    retention_tokens: int | None,
    chunk_tokens: int,
) -> GroupHits:
    """Serve a trace.

    Args:
        table: The trace.
        reuse: Its reuse in whole blocks of context.
        capacity_blocks: Blocks of the pool.
        groups: Tables of windows and states.
        retention_tokens: Windows stay cached at every multiple of it, at the end of a prompt and
            where a hit ran out of them; 0 for these two only; None at every block.
        chunk_tokens: Tokens of a prompt computed at once.

    Raises:
        ConfigError: Chunks or intervals that are no whole blocks.
    """
    size = reuse.grain_tokens
    check_retention(retention_tokens, size)
    if chunk_tokens % size:
        raise ConfigError(
            f"chunks of {chunk_tokens} tokens of a prompt must be whole blocks of {size} tokens."
        )
    offsets, numbers, nodes = number_blocks(reuse)
    pool = GroupPool(capacity_blocks, nodes, size, groups)
    hits = np.zeros((3, len(table)), np.int64)
    rejected = np.zeros(len(table), bool)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        path = numbers[offsets[request] : offsets[request + 1]]
        limit = (tokens - 1) // size
        resumed, found, marked = pool.find(path[:limit])
        ends = [*range(resumed * size + chunk_tokens, tokens, chunk_tokens), tokens]
        if pool.most_held([resumed * size, *ends]) > capacity_blocks:
            rejected[request] = True
            continue
        special = (limit, found if found > resumed else 0)
        keep = kept_ends(len(path), size, retention_tokens, special)
        running = pool.begin(path, resumed, keep)
        for end in ends:
            pool.compute(running, end)
        pool.end(running)
        hits[:, request] = resumed, found, marked
    return GroupHits(hits[0], hits[1], hits[2], rejected)


def kept_ends(
    blocks: int, size: int, retention_tokens: int | None, special: tuple[int, int]
) -> NDArray[np.bool_]:
    """bool[blocks]: whether the windows at the end of a block stay cached.

    ``special`` are numbers of blocks whose end is kept whatever the interval; 0 is none.
    """
    if retention_tokens is None:
        return np.ones(blocks, bool)
    ends = np.arange(1, blocks + 1)
    keep = np.isin(ends, special)
    if retention_tokens:
        keep |= ends * size % retention_tokens == 0
    return keep


def check_retention(retention_tokens: int | None, size: int) -> None:
    """Refuse an interval that is no whole blocks; raises ``ConfigError``."""
    if (retention_tokens or 0) % size:
        raise ConfigError(
            f"a retention of {retention_tokens} tokens must be whole blocks of {size} tokens."
        )
