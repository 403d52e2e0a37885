"""State of a batching engine next to its blocks: paused requests, and experts by block.

``KVBlockAllocator`` has both and the block pool under an engine's names, to port code from it.
"""

from collections.abc import Hashable, Sequence
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.blocks import NO_BLOCKS, BlockPool, Ids, Policy
from dsv4kv.errors import CacheError, ConfigError

Routing = NDArray[np.int16]


class PausedRequests:
    """Paused requests, oldest first: the oldest resume first, the newest are evicted first."""

    def __init__(self, pool: BlockPool, budget_blocks: int) -> None:
        """``budget_blocks``: what paused requests may keep together."""
        if not 0 <= budget_blocks <= pool.num_blocks:
            raise ConfigError(
                f"paused requests cannot keep {budget_blocks} blocks of {pool.num_blocks}: "
                f"give 0..{pool.num_blocks}."
            )
        self._pool, self.budget = pool, budget_blocks
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
        while self._paused and self._staying_blocks() > self.budget:
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

    @property
    def num_held(self) -> int:
        """Blocks that paused requests alone hold, each counted once however many share it."""
        return self._held_alone([ids for ids, _ in self._paused.values()])

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
        self.dummy_block_idx = pool.num_blocks
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
        return self.pool.num_held

    def get_active_used(self) -> int:
        """Blocks that running requests hold, alone or with others."""
        return self.pool.num_held - self.paused.num_held

    def get_paused_used(self) -> int:
        """Blocks that paused requests alone hold."""
        return self.paused.num_held

    def get_paused_avail(self) -> int:
        """What is left of the paused requests' budget; negative beyond it."""
        return self.paused.budget - self.paused.num_held

    def get_active_avail(self) -> int:
        """Blocks that running requests may take once paused ones have used up their budget."""
        return max(self.pool.num_free - max(self.get_paused_avail(), 0), 0)

    def store_block_routing(self, block: int, position: int, routing: Routing) -> None:
        """Store experts int16[n, L, k] of tokens of one block, from ``position`` on."""
        self.routing.store(np.array([block]), routing, position)
