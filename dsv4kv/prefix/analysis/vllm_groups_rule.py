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

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.group_pool import GroupHits, GroupPool, Kept
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.speculation import SPECULATIONS, Speculation
from dsv4kv.prefix.analysis.tail_groups import TailGroup, Way, number_ways


def replay_vllm_groups(
    table: PathTable,
    size: int,
    capacity_blocks: int,
    groups: tuple[TailGroup, ...],
    *,
    retention_tokens: int | None,
    chunk_tokens: int,
    speculation: Speculation = SPECULATIONS["none"],
) -> GroupHits:
    """Serve a trace.

    Args:
        table: The trace.
        size: Tokens of a block of context.
        capacity_blocks: Blocks of the pool.
        groups: Tables of windows and states, cut for the speculation.
        retention_tokens: Windows stay cached at every multiple of it, at the end of a prompt and
            where a hit ran out of them; 0 for these two only; None at every block.
        chunk_tokens: Tokens of a prompt computed at once.
        speculation: How drafts are made.

    Raises:
        ConfigError: Chunks or intervals that are no whole blocks.
    """
    check_retention(retention_tokens, size)
    if chunk_tokens % size:
        raise ConfigError(
            f"chunks of {chunk_tokens} tokens of a prompt must be whole blocks of {size} tokens."
        )
    ways, nodes = number_ways(table, size, groups, speculation.key_tokens)
    pool = GroupPool(capacity_blocks, nodes, size, groups, drops=speculation.drops)
    hits = np.zeros((3, len(table)), np.int64)
    rejected = np.zeros(len(table), bool)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        way = ways[request]
        resumed, found, marked = pool.find(way, (tokens - 1) // size)
        ends = [*range(resumed * size + chunk_tokens, tokens, chunk_tokens), tokens]
        if pool.most_held([resumed * size, *ends]) > capacity_blocks:
            rejected[request] = True
            continue
        kept = kept_ends(way, tokens, (resumed, found), size, retention_tokens, speculation)
        running = pool.begin(way, resumed, kept)
        for end in ends:
            pool.compute(running, end)
        pool.end(running)
        hits[:, request] = resumed, found, marked
    return GroupHits(hits[0], hits[1], hits[2], rejected)


def kept_ends(
    way: Way,
    tokens: int,
    hit: tuple[int, int],
    size: int,
    retention_tokens: int | None,
    speculation: Speculation,
) -> Kept:
    """Where the windows and states of a prompt stay cached.

    Args:
        way: The prompt.
        tokens: Its tokens.
        hit: Blocks that it resumes behind, and that its context found.
        size: Tokens of a block of context.
        retention_tokens: As ``replay_vllm_groups`` says.
        speculation: How drafts are made.
    """
    resumed, found = hit
    ends = np.arange(1 + max(map(len, way)))
    if retention_tokens is None:
        return Kept(ends > 0, ends > 0)
    last, whole = (tokens - 1) // size, tokens // size
    special = [max(0, last - 1), max(0, whole - 1)] if speculation.drops else [last]
    if found > resumed:
        special.append(found)
    tails = np.isin(ends, special)
    if retention_tokens:
        tails |= (ends > 0) & (ends * size % retention_tokens == 0)
    if not speculation.drops or found == resumed:
        return Kept(tails, tails)
    return Kept(tails, tails | (ends == found - 1))


def check_retention(retention_tokens: int | None, size: int) -> None:
    """Refuse an interval that is no whole blocks; raises ``ConfigError``."""
    if (retention_tokens or 0) % size:
        raise ConfigError(
            f"a retention of {retention_tokens} tokens must be whole blocks of {size} tokens."
        )
