"""Requests that were paused with their blocks, and how many blocks they may keep."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

import numpy as np

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.errors import CacheError, ConfigError


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks, each counted once however many requests share it.

    A block that a running request holds is active, whoever else holds it.

    Attributes:
        total: All but the dummy.
        total_used: Referenced.
        total_available: Unused or evictable.
        active_used: Referenced by running requests.
        active_available: What running requests may still take: the rest of what is available
            once paused requests have used up their budget.
        paused_used: Referenced by paused requests alone.
        paused_available: The rest of the paused requests' budget; negative: beyond it.
    """

    total: int
    total_used: int
    total_available: int
    active_used: int
    active_available: int
    paused_used: int
    paused_available: int


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """Blocks there is memory for.

    Attributes:
        device: In the memory of the device.
        paused: What paused requests may keep.
    """

    device: int
    paused: int

    def pool_blocks(self, *, unified: bool) -> int:
        """Blocks of the pool.

        ``unified``: paused requests keep their blocks in other memory, which the device can
        address as its own, so that the pool is the sum; else they are part of the device's.
        """
        return self.device + self.paused if unified else self.device


def common_budget(ranks: Sequence[BlockBudget]) -> BlockBudget:
    """What every rank of a pipeline has: all hold blocks of the same ids, so the least counts."""
    if not ranks:
        raise ConfigError("a pipeline of no ranks has no memory: name at least one.")
    return BlockBudget(min(r.device for r in ranks), min(r.paused for r in ranks))


Held = tuple[Ids, int]
"""Blocks of a paused request, and how many more it needs to go on."""


class PausedRequests:
    """Paused requests, oldest first: those resume first, and the newest are evicted first."""

    def __init__(self, allocator: RefCountAllocator, budget_blocks: int) -> None:
        """``budget_blocks``: what paused requests may keep together."""
        if not 0 <= budget_blocks <= allocator.num_blocks:
            raise ConfigError(
                f"paused requests cannot keep {budget_blocks} blocks of {allocator.num_blocks}: "
                f"give 0..{allocator.num_blocks}."
            )
        self._allocator = allocator
        self._budget = budget_blocks
        self._paused: dict[Hashable, Held] = {}

    def __len__(self) -> int:
        """Paused requests."""
        return len(self._paused)

    def pause(self, request: Hashable, ids: Ids, missing: int = 1) -> None:
        """Pause a request that holds ``ids`` and needs ``missing`` blocks to go on."""
        if request in self._paused:
            raise CacheError(f"request {request} is paused already. Nothing was changed.")
        self._allocator.check_held(np.unique(ids))
        self._paused[request] = ids.copy(), missing

    def resume(self) -> list[tuple[Hashable, Ids]]:
        """Resume those that memory allows, oldest first; none overtakes an older one.

        Returns each request with the blocks it was missing, already taken for it.
        """
        paused, able = self._paused, self._num_able()
        ends = list(accumulate(missing for _, missing in islice(paused.values(), able)))
        if not able:
            return []
        ids = self._allocator.acquire(ends[-1])
        self._paused = dict(islice(paused.items(), able, None))
        return list(zip(paused, np.split(ids, ends[:-1]), strict=False))

    def evict_over_budget(self) -> list[Hashable]:
        """Take the blocks of the newest paused requests, no more of them than it takes.

        What they give back (a block that others hold is not) lets the oldest resume, which is
        left to ``resume``; those that still cannot keep to the budget.
        """
        evicted = list[Hashable]()
        while self._paused and self._staying_blocks() > self._budget:
            evicted.append(self.evict_newest())
        return evicted

    def evict_newest(self) -> Hashable:
        """Take the blocks of the request that was paused last.

        For the budget, and where nobody runs any more who could give blocks back.
        """
        if not self._paused:
            raise CacheError("no request is paused. Nothing was changed.")
        request = next(reversed(self._paused))
        self._allocator.release(self._paused[request][0])
        del self._paused[request]
        return request

    def forget(self) -> list[Hashable]:
        """Forget all of them, oldest first: a reset takes their blocks."""
        paused, self._paused = self._paused, {}
        return list(paused)

    def _num_able(self) -> int:
        """How many of the oldest could resume now."""
        free = self._allocator.num_free
        needed = accumulate(missing for _, missing in self._paused.values())
        return sum(1 for _ in takewhile(lambda blocks: blocks <= free, needed))

    def _staying_blocks(self) -> int:
        """Blocks of those alone who could not resume now."""
        staying = islice(self._paused.values(), self._num_able(), None)
        return self._held_alone([ids for ids, _ in staying])

    def _held_alone(self, held: Sequence[Ids]) -> int:
        """Blocks to which nobody else refers."""
        blocks, times = np.unique(
            np.concatenate([*held, np.zeros(0, np.int64)]), return_counts=True
        )
        return int(np.count_nonzero(self._allocator.refs(blocks) == times))

    def counts(self) -> BlockCounts:
        """Count blocks; takes time in proportion to what is paused."""
        allocator = self._allocator
        paused = self._held_alone([ids for ids, _ in self._paused.values()])
        free, used = allocator.num_free, allocator.num_held
        return BlockCounts(
            total=allocator.num_blocks,
            total_used=used,
            total_available=free,
            active_used=used - paused,
            active_available=max(free - max(self._budget - paused, 0), 0),
            paused_used=paused,
            paused_available=self._budget - paused,
        )
