"""Blocks as a ledger: free, held by one request, held by the prefix index."""

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.index import PrefixIndex
from dsv4kv.replay.checkpoints import CheckpointStore
from dsv4kv.replay.data.path import NO_DATA, DataPath

_BATCHES = 1024


class BlockLedger:
    """Counts blocks; evicts cached ones when a request needs more than are free.

    What the index holds it holds in *shared blocks* of one or more cache blocks each: the grid on
    which prompts can be compared at all.

    Attributes:
        total: All blocks.
        private: Blocks that one request holds for itself.
        per_shared: Cache blocks of a shared block.
        evicted: Shared blocks evicted so far.
        freed: Grows whenever more may have become available.
    """

    def __init__(
        self,
        total: int,
        per_shared: int,
        index: PrefixIndex | None,
        marks: CheckpointStore,
        data: DataPath = NO_DATA,
    ) -> None:
        self.total, self.per_shared = total, per_shared
        self.private = self.evicted = self.freed = 0
        self._index, self._marks, self._data = index, marks, data
        # evicting in batches of one size makes the order of evictions independent of how many
        # steps are taken at once
        self._batch = max(1, total // per_shared // _BATCHES)

    @property
    def cached(self) -> int:
        """Blocks that only the index holds: they may be evicted."""
        return self._index.evictable * self.per_shared if self._index else 0

    @property
    def shared(self) -> int:
        """Blocks of the index that requests are using."""
        return self._held * self.per_shared - self.cached

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return self.total - self.private - self._held * self.per_shared

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted."""
        return self.free + self.cached

    def take(self, count: int) -> None:
        """Give a request blocks of its own; raises ``OutOfBlocks`` and changes nothing."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks are needed and {self.available} can be had.")
        while (missing := count - self.free) > 0:
            self._evict(missing)
        self.private += count

    def give(self, count: int) -> None:
        """Take private blocks back, or let the index have them."""
        self.private -= count
        self.freed += 1

    @property
    def _held(self) -> int:
        return self._index.held if self._index else 0

    def _evict(self, missing: int) -> None:
        """Evict a batch, or all that it takes where that comes to the same."""
        index = self._index
        assert index is not None
        batches = -(-missing // (self._batch * self.per_shared)) if index.blockwise else 1
        gone = index.evict(min(batches * self._batch, index.evictable))
        self.evicted += len(gone)
        keys = gone.tolist()
        self._marks.drop(keys)
        self._data.forget(keys)
