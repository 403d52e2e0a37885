"""Short ways to blocks."""

import numpy as np

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.stack import Ids


def ids(*blocks: int) -> Ids:
    return np.array(blocks, dtype=np.int64)


def chain(allocator: RefCountAllocator, *hashes: int, parent: int = 0) -> Ids:
    """Blocks of a registered chain, referenced once."""
    blocks = allocator.acquire(len(hashes))
    allocator.register_kv_block_hashes(blocks, hashes, (parent, *hashes[:-1]))
    return blocks


def cached(allocator: RefCountAllocator, *hashes: int, parent: int = 0) -> Ids:
    """Blocks of a registered chain that nobody references."""
    blocks = chain(allocator, *hashes, parent=parent)
    allocator.release_memory_blocks(blocks)
    return blocks


def state(allocator: RefCountAllocator) -> dict[str, object]:
    """All that can be told: equal before and after a refusal."""
    states = allocator._states
    return {
        "refs": states.refs.tolist(),
        "hashes": states.hashes.of_block.tolist(),
        "by_hash": dict(states.hashes._blocks),
        "parents": states.chains.parent.tolist(),
        "children": states.chains.children[:-1].tolist(),
        "live": states.chains.live[:-1].tolist(),
        "order": states.cached._position.argsort(kind="stable").tolist(),
        "counts": (allocator.num_unused, allocator.num_cached, allocator.num_held),
    }
