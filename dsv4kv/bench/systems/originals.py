"""The block pool of a batching engine under the names of the engine it reproduces.

Who ports code finds here what each of its calls is called in ``cache.blocks`` and
``cache.batching``.
"""

import numpy as np

from dsv4kv.cache.batching import BlockCounts, PausedRequests, Routing, RoutingStore
from dsv4kv.cache.blocks import NO_BLOCKS, BlockPool, Ids, Policy


class KVBlockAllocator:
    """Blocks 0..N−1, the last a dummy for padding rows, with paused requests and routing."""

    def __init__(
        self,
        total_blocks: int,
        paused_blocks: int,
        routing_shape: tuple[int, int, int],
        policy: Policy = "lru",
    ) -> None:
        """``routing_shape``: tokens of a block, layers, experts of a token."""
        self.pool = pool = BlockPool(total_blocks - 1, policy=policy)
        self.paused = PausedRequests(pool, paused_blocks)
        self.routing = RoutingStore(pool, *routing_shape)
        self.dummy_block_idx = pool.dummy_block
        self.retain_memory_blocks = pool.retain
        self.release_memory_blocks = pool.release
        self.register_kv_block_hashes = pool.register
        self.find_kv_blocks = pool.find
        self.update_timestamps = pool.touch
        self.evict_lru_blocks = pool.evict
        self.get_block_routing = self.routing.of_block
        self.reconstruct_routing_from_blocks = self.routing.reconstruct

    def is_memory_available(self, count: int, potential_matched_count: int = 0) -> bool:
        """Whether ``count`` blocks can be had beside cached ones that are about to be retained."""
        return 0 <= count <= self.pool.num_free - max(potential_matched_count, 0)

    def allocate_memory_blocks(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Take blocks, evicting cached ones if need be; None without room for all."""
        return self.pool.allocate(count, matched)

    def get_evictable_block_count(self) -> int:
        """Cached blocks that no held one follows."""
        return self.pool.num_evictable

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Take all blocks from all requests."""
        self.pool.reset(preserve_prefix_cache=preserve_prefix_cache)

    def counts(self) -> BlockCounts:
        """All of the following counts at once."""
        return self.paused.counts()

    def get_total_used(self) -> int:
        """Blocks that are held."""
        return self.counts().total_used

    def get_active_used(self) -> int:
        """Blocks that running requests hold."""
        return self.counts().active_used

    def get_active_avail(self) -> int:
        """Blocks that running requests may still take."""
        return self.counts().active_available

    def get_paused_used(self) -> int:
        """Blocks that paused requests alone hold."""
        return self.counts().paused_used

    def get_paused_avail(self) -> int:
        """What is left of the paused requests' budget."""
        return self.counts().paused_available

    def store_routing_per_block(self, ids: Ids, flat: Routing) -> None:
        """Store experts int16[T, L, k] of consecutive tokens, the first in ``ids[0]``."""
        self.routing.store(ids, flat)

    def store_block_routing(self, block: int, position: int, routing: Routing) -> None:
        """Store experts int16[n, L, k] of tokens of one block, from ``position`` on."""
        self.routing.store(np.array([block]), routing, position)
