"""The block pool under a batching engine's names of the calls, to port code from it."""

import numpy as np

from dsv4kv.cache.batching import PausedRequests, Routing, RoutingStore
from dsv4kv.cache.blocks import BlockPool, Policy


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
        self.counts = self.paused.counts
        self.reset = pool.reset
        self.allocate_memory_blocks = pool.allocate
        self.retain_memory_blocks = pool.retain
        self.release_memory_blocks = pool.release
        self.register_kv_block_hashes = pool.register
        self.find_kv_blocks = pool.find
        self.update_timestamps = pool.touch
        self.evict_lru_blocks = pool.evict
        self.store_routing_per_block = self.routing.store
        self.get_block_routing = self.routing.of_block
        self.reconstruct_routing_from_blocks = self.routing.reconstruct

    def is_memory_available(self, count: int, potential_matched_count: int = 0) -> bool:
        """Whether ``count`` blocks can be had if matched cached ones are retained."""
        return 0 <= count <= self.pool.num_free - max(potential_matched_count, 0)

    def get_evictable_block_count(self) -> int:
        """Cached blocks that no held one follows."""
        return self.pool.num_evictable

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

    def store_block_routing(self, block: int, position: int, routing: Routing) -> None:
        """Store experts int16[n, L, k] of tokens of one block, from ``position`` on."""
        self.routing.store(np.array([block]), routing, position)
