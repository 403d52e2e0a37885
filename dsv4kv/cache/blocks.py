"""The block pool: blocks are free, held by one or several requests, or cached.

A registered block without holders stays cached until its place is needed: then the least recently
used one is evicted that no other registered block follows. Every call checks before it changes
anything, so a refused call changes nothing.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import CacheError, ConfigError, NotOwner, OutOfBlocks

Ids = NDArray[np.int64]
NO_BLOCKS: Ids = np.zeros(0, dtype=np.int64)
NO_HASH = 0
Policy = Literal["lru", "ref_zero"]


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change: ``acquired``, ``retained``, ``released``, ``registered``, ``evicted``, ``reset``.

    ``ids`` int64 are the blocks, ``hashes`` what they were found by (registered, evicted).
    """

    kind: str
    ids: Ids
    hashes: tuple[int, ...] = ()


class BlockPool:
    """Hands out block ids, counts their holders, finds them by hash, and evicts.

    Ids are int64[n]. A block's generation grows when it is handed out, so that an old holder can
    be distinguished from a new one.

    Attributes:
        num_blocks: Blocks 0..n−1.
        dummy_block: n, for padding rows: never handed out.
        num_unused: Blocks in the free stack.
        num_cached: Blocks without holders that are found by their hash.
        observers: Called with a ``BlockEvent`` after every change; one that raises is counted in
            ``observer_errors`` and the next is called.
        on_freed: Called with blocks whose content is gone.
    """

    def __init__(self, num_blocks: int, unit: str = "blocks", policy: Policy = "lru") -> None:
        """Start with all blocks free, the lowest handed out first.

        ``unit`` is what messages call them; ``policy``: a registered block without holders is
        cached (``lru``) or free at once (``ref_zero``).
        """
        if num_blocks <= 0:
            raise ConfigError(f"a pool of {num_blocks} {unit} cannot be: give at least 1.")
        self.num_blocks = self.dummy_block = num_blocks
        self.unit, self.policy = unit, policy
        self.observers: list[Callable[[BlockEvent], None]] = []
        self.observer_errors = 0
        self.on_freed: Callable[[Ids], None] | None = None
        self.num_unused = num_blocks
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._generation = np.zeros(num_blocks, dtype=np.int64)
        self._serial = 0
        self._clear()

    def _clear(self) -> None:
        """Forget everything but the free stack.

        Each list has one cell more than there are blocks: first blocks of a chain follow it, and
        it counts as held.
        """
        size = self.num_blocks + 1
        self._refs, self._hash = np.zeros((2, size), dtype=np.int64)
        self._refs[-1] = 1
        self._parent = np.full(size, self.num_blocks)  # the registered block before
        self._refs_at, self._hash_at = self._refs.data, self._hash.data  # single cells are faster
        self._parent_at = self._parent.data
        self._children = [0] * size  # registered blocks that follow
        self._live = [0] * size  # of these, how many are held or precede a held one
        self._used = [0] * size  # when a cached block was last used; 0 for blocks that are not
        self._leaves: list[tuple[int, int]] = []  # heap of (used, block) of cached chains' ends
        self._by_hash: dict[int, list[int]] = {}
        self._clock = self.num_cached = self._num_kept = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out: unused ones, and cached ones that can be evicted."""
        return self.num_unused + self.num_evictable

    @property
    def num_evictable(self) -> int:
        """Cached blocks that precede no held one."""
        return self.num_cached - self._num_kept

    @property
    def num_held(self) -> int:
        """Blocks with holders."""
        return self.num_blocks - self.num_unused - self.num_cached

    def refs(self, ids: Ids) -> Ids:
        """Holders of blocks, int64[n]; ``NotOwner`` beyond the pool."""
        return self._refs[self._in_pool(ids)]

    def generation(self, ids: Ids) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        return self._generation[self._in_pool(ids)]

    def has_content(self, block: int) -> bool:
        """Whether a block is held or cached."""
        return 0 <= block < self.num_blocks and bool(self._refs_at[block] or self._hash_at[block])

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        row = as_ids(ids)
        if not self._are_in_pool(row) or np.count_nonzero(self._refs[row]) < row.size:
            raise self._refusal(ids, "not all are held")
        if len(set(row.tolist())) < row.size:
            raise self._refusal(ids, "one is named twice")

    def holds_room(self, count: int, matched: Ids = NO_BLOCKS) -> bool:
        """Whether ``count`` blocks can be had once ``matched`` ones have been retained."""
        kept = set[int]()  # evictable now, and not once the matched ones are held
        for number in matched.tolist():
            while self._used[number] and not self._live[number] and number not in kept:
                kept.add(number)
                number = self._parent_at[number]  # noqa: PLW2901
        return 0 <= count <= self.num_free - len(kept)

    def acquire(self, count: int) -> Ids:
        """Take blocks, evicting cached ones if need be; raises ``OutOfBlocks``."""
        if not 0 <= count <= self.num_free:
            raise OutOfBlocks(
                f"{count} {self.unit} are needed and {self.num_free} of {self.num_blocks} are "
                "free: raise cache.num_blocks, or lower concurrency or context. Nothing was "
                "changed."
            )
        if count > self.num_unused:
            self._evict(count - self.num_unused)
        self.num_unused -= count
        ids = self._free[self.num_unused : self.num_unused + count].copy()
        self._serial += 1
        self._generation[ids] = self._serial
        self._refs[ids] = 1
        self._notify("acquired", ids)
        return ids

    def allocate(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Retain ``matched`` blocks, then take ``count``; None, and nothing done, without room.

        Room is never made of the matched ones.
        """
        self._check_known(matched)
        if not self.holds_room(count, matched):
            return None
        self.retain(matched)
        return self.acquire(count)

    def retain(self, ids: Ids) -> None:
        """Add a holder to held or cached blocks, one for each time a block is named."""
        row = self._check_known(ids)
        blocks, times = _count(row)
        before = self._refs[blocks]
        for number in blocks[before == 0].tolist():
            if self._live[number]:
                self._num_kept -= 1
            else:
                self._follow(self._parent_at[number], 1)
            self._refs_at[number] = 1
            self._used[number] = 0
            self.num_cached -= 1
        self._refs[blocks] = before + times
        if row.size:
            self._notify("retained", ids)

    def release(self, ids: NDArray[np.integer], generations: Ids | None = None) -> int:
        """Take a holder from each block, for each time it is named; ids in order of their chain.

        One without holders is cached if it is registered, the last of a chain to be evicted
        first, and free otherwise. Returns how many are without holders now.

        Raises:
            NotOwner: A block has fewer holders, or, with ``generations`` as they were when it
                was acquired, a newer one.
        """
        row = self._in_pool(ids)
        if generations is not None and not np.array_equal(self._generation[row], generations):
            raise self._refusal(ids, "not all are still held by who took them")
        blocks, times = _count(row)
        refs = self._refs[blocks]
        if (refs < times).any():
            reason = "one has fewer holders" if refs.all() else "not all are held"
            raise self._refusal(row, reason)
        done = blocks[refs == times]
        registered = self._hash[done] != NO_HASH
        self._refs[blocks] = refs - times
        self._refs[done[registered]] = 1  # until it is their turn
        evicted, keeps = list[tuple[int, int]](), self.policy == "lru"
        for number in reversed(done[registered].tolist()):
            self._refs_at[number] = 0
            if self._live[number] and keeps:
                self._num_kept += 1
            else:
                self._follow(self._parent_at[number], -1)
            if keeps:
                self.num_cached += 1
                self._use(number)
            else:
                evicted.append((number, self._forget(number)))
        self._put_back(done[~registered] if keeps else done)
        if row.size:
            self._notify("released", row)
        if evicted:
            numbers, hashes = zip(*evicted, strict=True)
            self._notify("evicted", np.array(numbers), hashes)
        return len(done)

    def num_freed(self, ids: NDArray[np.integer]) -> int:
        """Blocks that ``release`` of held ``ids`` would free, at least."""
        blocks, times = _count(self._in_pool(ids))
        alone = (self._refs[blocks] == times) & (self._hash[blocks] == NO_HASH)
        return int(np.count_nonzero(alone))

    def register(self, ids: Ids, hashes: Sequence[int], parents: Sequence[int]) -> None:
        """Let held blocks be found by int64 hashes of their tokens and history.

        Args:
            ids: Blocks; those that have their hash already are passed over.
            hashes: Neither 0 nor −1.
            parents: Hashes of the blocks before them; 0 for first ones.

        Raises:
            NotOwner: A block is not held.
            CacheError: A hash cannot be, differs from the block's, or follows an unknown one.
        """
        numbers = self._in_pool(ids).tolist()
        if not len(numbers) == len(hashes) == len(parents):
            raise CacheError(
                f"{len(numbers)} blocks, {len(hashes)} hashes and {len(parents)} parents were "
                "given: give one of each for every block. Nothing was changed."
            )
        here: dict[int, int] = {NO_HASH: self.num_blocks}  # block of each hash named so far
        new: dict[int, tuple[int, int]] = {}  # hash, and the block before
        for number, hash_, parent in zip(numbers, hashes, parents, strict=True):
            if not self._refs_at[number]:
                raise self._refusal(ids, "not all are held")
            known = new[number][0] if number in new else self._hash_at[number]
            if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
                raise CacheError(
                    f"block {number} has hash {known} and cannot get {hash_}: 0 and −1 are no "
                    "hashes, and content keeps its own. Nothing was changed."
                )
            if not known:
                if parent not in here and parent not in self._by_hash:
                    raise CacheError(
                        f"block {number} is to follow hash {parent}, which no block has: register "
                        "a chain from its first block on. Nothing was changed."
                    )
                new[number] = hash_, here[parent] if parent in here else self._by_hash[parent][0]
            here[hash_] = number
        self._hash[list(new)] = [hash_ for hash_, _ in new.values()]  # refused beyond int64
        for number, (hash_, above) in new.items():
            self._by_hash.setdefault(hash_, []).append(number)
            self._parent_at[number] = above
            self._children[above] += 1
            self._follow(above, 1)
        self._notify("registered", ids, hashes)

    def find(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one, int64[n]: retain them next."""
        found = list[int]()
        for hash_ in hashes:
            if hash_ not in self._by_hash:
                break
            found.append(self._by_hash[hash_][0])
        return np.array(found, dtype=np.int64)

    def touch(self, ids: Ids) -> None:
        """Make cached blocks the most recently used, the last of them to be evicted first."""
        numbers = [n for n in dict.fromkeys(ids.tolist()) if 0 <= n < self.num_blocks]
        for number in reversed(numbers):
            if self._used[number]:
                self._use(number)

    def evict(self, count: int) -> bool:
        """Free the ``count`` least recently used cached blocks; False if there are fewer."""
        enough = 0 <= count <= self.num_evictable
        if enough:
            self._evict(count)
        return enough

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Take all blocks from their holders; without ``preserve_prefix_cache``, forget all."""
        held = np.flatnonzero(self._refs[:-1])
        if preserve_prefix_cache and self.policy == "lru":
            self._refs[held] = 1
            self.release(held)
            return
        out = np.union1d(held, np.flatnonzero(self._hash))
        self._clear()
        self._put_back(out)
        self._notify("reset", out)

    def _use(self, number: int) -> None:
        """A cached block becomes the most recently used."""
        self._clock += 1
        self._used[number] = self._clock
        if not self._children[number]:
            self._add_leaf(number)

    def _add_leaf(self, number: int) -> None:
        if len(self._leaves) > 2 * self.num_blocks:  # most are outdated
            cached = ((used, n) for n, used in enumerate(self._used) if used)
            self._leaves = sorted((used, n) for used, n in cached if not self._children[n])
        heapq.heappush(self._leaves, (self._used[number], number))

    def _evict(self, count: int) -> None:
        numbers, hashes = list[int](), list[int]()
        while len(numbers) < count:
            used, number = heapq.heappop(self._leaves)
            if self._used[number] == used and not self._children[number]:
                numbers.append(number)
                hashes.append(self._forget(number))
        self.num_cached -= count
        ids = np.array(numbers, dtype=np.int64)
        self._put_back(ids)
        if count:
            self._notify("evicted", ids, hashes)

    def _forget(self, number: int) -> int:
        """A block without holders loses its hash, which is returned; followers begin a chain."""
        if self._children[number]:
            self._parent[self._parent == number] = self.num_blocks
            self._children[number] = self._live[number] = 0
        hash_, above = self._hash_at[number], self._parent_at[number]
        same = self._by_hash[hash_]
        same.remove(number)
        if not same:
            del self._by_hash[hash_]
        self._hash_at[number] = self._used[number] = 0
        self._parent_at[number] = self.num_blocks
        self._children[above] -= 1
        if self._used[above] and not self._children[above]:
            self._add_leaf(above)
        return hash_

    def _follow(self, number: int, change: int) -> None:
        """A follower of a block begins (1) or ceases (−1) to be held, or to precede a held one."""
        while True:
            before = self._live[number]
            self._live[number] += change
            if self._refs_at[number] or (before and self._live[number]):
                return
            self._num_kept += change
            number = self._parent_at[number]

    def _put_back(self, ids: Ids) -> None:
        self._free[self.num_unused : self.num_unused + ids.size] = ids
        self.num_unused += ids.size
        if self.on_freed is not None and ids.size:
            self.on_freed(ids)

    def _check_known(self, ids: Ids) -> Ids:
        row = self._in_pool(ids)
        if np.count_nonzero(self._refs[row] | self._hash[row]) < row.size:
            raise self._refusal(row, "not all are held or cached")
        return row

    def _in_pool(self, ids: NDArray[np.integer]) -> Ids:
        ids = as_ids(ids)
        if not self._are_in_pool(ids):
            raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")
        return ids

    def _are_in_pool(self, ids: Ids) -> bool:
        return not ids.size or bool(0 <= ids.min() <= ids.max() < self.num_blocks)

    def _refusal(self, ids: NDArray[np.integer], reason: str) -> NotOwner:
        shown = ", ".join(str(i) for i in ids.ravel()[:8])
        more = ", …" if ids.size > 8 else ""
        return NotOwner(f"{self.unit} {shown}{more}: {reason}. Nothing was changed.")

    def _notify(self, kind: str, ids: Ids, hashes: Sequence[int] = ()) -> None:
        for observer in tuple(self.observers):
            try:
                observer(BlockEvent(kind, ids.copy(), tuple(hashes)))
            except Exception:
                self.observer_errors += 1


def as_ids(ids: NDArray[np.integer]) -> Ids:
    """Ids of any type of whole numbers as int64; ``NotOwner`` if they are none."""
    if ids.size and ids.dtype.kind not in "iu":
        raise NotOwner(f"ids must be whole numbers, not {ids.dtype}. Nothing was changed.")
    return ids.astype(np.int64, copy=False)


def _count(row: Ids) -> tuple[Ids, Ids | Literal[1]]:
    """Distinct blocks in the order they are first named, and how often each is."""
    numbers = row.tolist()
    if len(set(numbers)) == len(numbers):
        return row, 1
    counts = Counter(numbers)
    return np.array(list(counts)), np.array(list(counts.values()))
