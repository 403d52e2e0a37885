"""State of a batching engine next to its blocks: paused requests, and experts by block."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.blocks import NO_BLOCKS, BlockPool, Ids
from dsv4kv.errors import CacheError, ConfigError

Routing = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Blocks, each counted once however many share it; a running holder makes it active."""

    total: int  # all but the dummy
    total_used: int  # held
    total_available: int  # unused or evictable
    active_used: int  # held by running requests
    active_available: int
    """What running requests may still take once paused ones have used up their budget."""
    paused_used: int  # held by paused requests alone
    paused_available: int  # the rest of their budget; negative: beyond it


class PausedRequests:
    """Paused requests, oldest first: the oldest resume first, the newest are evicted first."""

    def __init__(self, pool: BlockPool, budget_blocks: int) -> None:
        """``budget_blocks``: what paused requests may keep together."""
        if not 0 <= budget_blocks <= pool.num_blocks:
            raise ConfigError(
                f"paused requests cannot keep {budget_blocks} blocks of {pool.num_blocks}: "
                f"give 0..{pool.num_blocks}."
            )
        self._pool, self._budget = pool, budget_blocks
        self._paused: dict[Hashable, tuple[Ids, int]] = {}  # blocks, and how many are missing

    def __len__(self) -> int:
        """Paused requests."""
        return len(self._paused)

    def pause(self, request: Hashable, ids: Ids, missing: int = 1) -> None:
        """Pause a request that holds ``ids`` and needs ``missing`` blocks to go on."""
        if request in self._paused:
            raise CacheError(f"request {request} is paused already. Nothing was changed.")
        self._pool.check_held(np.unique(ids))
        self._paused[request] = ids.copy(), missing

    def resume(self) -> list[tuple[Hashable, Ids]]:
        """Resume those that memory allows, oldest first; none overtakes an older one.

        Returns each request with the blocks it was missing, already taken for it.
        """
        return [
            (request, self._pool.acquire(self._paused.pop(request)[1]))
            for request in list(islice(self._paused, self._num_able()))
        ]

    def evict_over_budget(self) -> list[Hashable]:
        """Take the blocks of the newest paused requests, no more of them than it takes.

        What they give back lets the oldest resume, which is left to ``resume``; the budget is for
        those that still cannot.
        """
        evicted = list[Hashable]()
        while self._paused and self._staying_blocks() > self._budget:
            evicted.append(self.evict_newest())
        return evicted

    def evict_newest(self) -> Hashable:
        """Take the blocks of the request that was paused last."""
        if not self._paused:
            raise CacheError("no request is paused. Nothing was changed.")
        request, (ids, _) = self._paused.popitem()
        self._pool.release(ids)
        return request

    def forget(self) -> list[Hashable]:
        """Forget all of them, oldest first: a reset takes their blocks."""
        paused, self._paused = self._paused, {}
        return list(paused)

    def counts(self) -> BlockCounts:
        """Count blocks; takes time in proportion to what is paused."""
        pool = self._pool
        paused = self._held_alone([ids for ids, _ in self._paused.values()])
        return BlockCounts(
            total=pool.num_blocks,
            total_used=pool.num_held,
            total_available=pool.num_free,
            active_used=pool.num_held - paused,
            active_available=max(pool.num_free - max(self._budget - paused, 0), 0),
            paused_used=paused,
            paused_available=self._budget - paused,
        )

    def _num_able(self) -> int:
        needed = accumulate(missing for _, missing in self._paused.values())
        return sum(blocks <= self._pool.num_free for blocks in needed)

    def _staying_blocks(self) -> int:
        staying = islice(self._paused.values(), self._num_able(), None)
        return self._held_alone([ids for ids, _ in staying])

    def _held_alone(self, held: Sequence[Ids]) -> int:
        """Blocks that no other request holds."""
        blocks, times = np.unique(np.concatenate([*held, NO_BLOCKS]), return_counts=True)
        return int(np.count_nonzero(self._pool.refs(blocks) == times))


class RoutingStore:
    """Which experts were chosen for the tokens of every block: kept as long as its content is.

    Indices are int16[tokens, layers, top_k]. The dummy block and free blocks have none.
    """

    def __init__(self, pool: BlockPool, block_tokens: int, num_layers: int, top_k: int) -> None:
        self.block_tokens = block_tokens
        self._pool, self._shape = pool, (num_layers, top_k)
        self._blocks: dict[int, tuple[Routing, NDArray[np.bool_]]] = {}
        pool.on_freed = self._drop

    def store(self, ids: Ids, routing: Routing, first: int = 0) -> None:
        """Store indices of consecutive tokens, the first at place ``first`` of ``ids[0]``.

        Raises:
            ConfigError: Another shape, or more tokens than fit into the blocks.
        """
        routing, size = np.asarray(routing), self.block_tokens
        if routing.shape[1:] != self._shape:
            raise ConfigError(f"routing must have shape (n, {self._shape}), not {routing.shape}.")
        if first < 0 or first + len(routing) > len(ids) * size:
            raise ConfigError(
                f"{len(routing)} tokens from place {first} on do not fit into {len(ids)} blocks "
                f"of {size}."
            )
        places = np.arange(first, first + len(routing))
        for number in dict.fromkeys((places // size).tolist()):
            block, some = int(ids[number]), places // size == number
            if block >= self._pool.num_blocks or not self._pool.has_content(block):
                continue
            if block not in self._blocks:
                indices = np.zeros((size, *self._shape), dtype=np.int16)
                self._blocks[block] = indices, np.zeros(size, dtype=np.bool_)
            indices, known = self._blocks[block]
            indices[places[some] % size], known[places[some] % size] = routing[some], True

    def of_block(self, block: int) -> Routing | None:
        """Copy of the indices of a block's tokens up to the first unknown; None without any."""
        if block not in self._blocks:
            return None
        indices, known = self._blocks[block]
        count = len(known) if known.all() else int(known.argmin())
        return indices[:count].copy() if count else None

    def reconstruct(self, ids: Ids, total: int) -> Routing | None:
        """Indices of the first ``total`` tokens of a chain of blocks; None if one misses."""
        parts = [np.zeros((0, *self._shape), dtype=np.int16)]
        for number in range(-(-total // self.block_tokens)):
            part = self.of_block(int(ids[number])) if number < len(ids) else None
            wanted = min(self.block_tokens, total - number * self.block_tokens)
            if part is None or len(part) < wanted:
                return None
            parts.append(part[:wanted])
        return np.concatenate(parts)

    def _drop(self, ids: Ids) -> None:
        for block in ids.tolist() if self._blocks else ():
            self._blocks.pop(block, None)
