"""What can be told of ref-counted blocks without changing them."""

import numpy as np

from dsv4kv.cache.allocator import Ids, as_ids
from dsv4kv.cache.allocators.refusal import not_owner
from dsv4kv.cache.allocators.states import BlockStates, ReleasePolicy
from dsv4kv.errors import ConfigError

NO_BLOCKS: Ids = np.zeros(0, dtype=np.int64)


class CountedBlocks:
    """Blocks 0..N−1; the last is a dummy for padding rows and never handed out.

    Attributes:
        total_blocks: N.
        num_blocks: Blocks that can be handed out, N − 1.
        dummy_block: N − 1.
        lanes: 1.
    """

    def __init__(self, total_blocks: int, policy: ReleasePolicy) -> None:
        """Start with all blocks free."""
        if total_blocks < 2:
            raise ConfigError(
                f"a pool of {total_blocks} blocks has none beside its dummy: give at least 2."
            )
        self.total_blocks = total_blocks
        self.dummy_block = self.num_blocks = total_blocks - 1
        self.lanes = 1
        self._states = BlockStates(self.num_blocks, policy)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out: unused ones, and cached ones that may be evicted."""
        return self._states.stack.num_free + self._states.num_evictable

    @property
    def num_unused(self) -> int:
        """Blocks in the free list."""
        return self._states.stack.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can still be found by their hash."""
        return len(self._states.cached)

    @property
    def num_held(self) -> int:
        """Blocks that are referenced."""
        return self.num_blocks - self.num_unused - self.num_cached

    def refs(self, ids: Ids) -> Ids:
        """References of blocks, int64[n]; ``NotOwner`` beyond the pool."""
        self.generation(ids)
        return self._states.refs[as_ids(ids)].astype(np.int64)

    def generation(self, ids: Ids) -> Ids:
        """Generations of blocks: grow whenever one is handed out; ``NotOwner`` beyond the pool."""
        if ids.size and ids.min() < 0:
            raise not_owner("blocks", ids, f"not all are in 0..{self.num_blocks - 1}")
        return self._states.stack.generation(ids)

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is referenced and none is named twice."""
        self._states.stack.check_held(ids)
        if not self._states.refs[as_ids(ids)].all():
            raise not_owner("blocks", ids, "not all are referenced")

    def get_evictable_block_count(self) -> int:
        """Cached blocks that no referenced block follows."""
        return self._states.num_evictable

    def is_memory_available(
        self, count: int, potential_matched_count: int = 0, matched: Ids = NO_BLOCKS
    ) -> bool:
        """Whether ``count`` blocks can be had once others have been retained.

        Args:
            count: Blocks to take.
            potential_matched_count: As many cached ones, if only their number is known: those of
                a chain from its first block on.
            matched: Or which; what is before them cannot be evicted then, either.
        """
        needed = potential_matched_count
        if matched.size:
            needed = self._states.num_needed(matched)
        return 0 <= count <= self.num_free - max(needed, 0)
