"""Eviction policies other than the plain order of use, simulated at one capacity."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.losses import Losses
from dsv4kv.prefix.analysis.nodes import number_blocks
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import Reuse
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.policies import OFFLINE, make_policy


def replay_policy(name: str, table: PathTable, reuse: Reuse, capacity_blocks: int) -> Outcome:
    """Serve a trace, one request after the other, from a cache that a policy empties.

    Raises:
        ConfigError: There is no such policy, or the longest prompt does not fit the cache.
    """
    longest = int(reuse.blocks.max())
    if capacity_blocks < longest:
        raise ConfigError(
            f"a cache of {capacity_blocks:,} blocks is smaller than the longest prompt, "
            f"{longest:,} blocks of {reuse.grain_tokens} tokens."
        )
    offsets, numbers, _ = number_blocks(reuse)
    paths = [numbers[a:b] for a, b in pairwise(offsets)]
    policy = make_policy(name, capacity_blocks, paths if name == OFFLINE else None)
    index = BlockHashIndex(policy)
    found = np.fromiter(_serve(index, paths, capacity_blocks), np.int64, len(paths))
    tokens = np.minimum(found * reuse.grain_tokens, reuse.tokens)
    lost = int((reuse.found_tokens(None) - tokens).sum())
    return Outcome(
        name,
        tokens,
        table.total_input_tokens,
        Losses(evicted_block=lost),
        found_tokens=int(tokens.sum()),
        found_blocks=int(found.sum()),
    )


def _serve(index: BlockHashIndex, paths: list[Ints], capacity_blocks: int) -> Iterator[int]:
    """Blocks that every request hits."""
    held = 0
    for path in paths:
        lease = index.pin(path)
        found = lease.length
        missing = len(path) - found
        if held + missing > capacity_blocks:
            held -= len(index.evict(held + missing - capacity_blocks))
        index.extend(lease, path[found:], path[found:])
        held += missing
        index.release(lease)
        yield found
