"""The block pool: blocks are free, held by one or several requests, or cached.

A registered block without holders stays cached until its place is needed: then the least recently
used one is evicted that no other registered block follows. Every call checks before it changes
anything, so a refused call changes nothing.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import CacheError, ConfigError, NotOwner, OutOfBlocks

Ids = NDArray[np.int64]
INT64 = np.dtype(np.int64)
NO_BLOCKS: Ids = np.zeros(0, dtype=np.int64)
NO_HASH = 0
_PASSED = -1  # the stamp of a cached block whose turn came while others followed it
Policy = Literal["lru", "ref_zero"]


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change: ``acquired``, ``retained``, ``released``, ``registered``, ``evicted``, ``reset``.

    ``ids`` int64 are the blocks, ``hashes`` their keys in the index (registered, evicted).
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
        num_unused: Blocks in the free stack.
        num_cached: Blocks without holders that are found by their hash.
        observers: Called with a ``BlockEvent`` after every change.
        on_freed: Called with blocks whose content is gone.
    """

    def __init__(self, num_blocks: int, unit: str = "blocks", policy: Policy = "lru") -> None:
        """Start with all blocks free, the lowest handed out first.

        ``unit`` is what messages call them; ``policy``: a registered block without holders is
        cached (``lru``) or free immediately (``ref_zero``).
        """
        if num_blocks <= 0:
            raise ConfigError(f"a pool of {num_blocks} {unit} cannot be: give at least 1.")
        self.num_blocks, self.unit, self.policy = num_blocks, unit, policy
        self.observers: list[Callable[[BlockEvent], None]] = []
        self.on_freed: Callable[[Ids], None] | None = None
        self.num_unused = num_blocks
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._ids, self._marks = np.arange(num_blocks), np.zeros(num_blocks, dtype=np.int64)
        # Comparing bytes is several times faster than comparing arrays.
        self._ones = np.ones(num_blocks, dtype=np.int64).tobytes()
        self._generation = np.zeros(num_blocks, dtype=np.int64)
        self._serial = 0
        self._clear()

    def _clear(self) -> None:
        """Forget everything but the free stack.

        Lists have a cell more than there are blocks: the first blocks of chains follow it.
        """
        size = self.num_blocks + 1
        self._refs = np.zeros(self.num_blocks, dtype=np.int64)
        self._by_hash: dict[int, list[int]] = {}  # blocks in order; the first is found
        self._hash, self._parent = [NO_HASH] * size, [self.num_blocks] * size
        self._children = [0] * size  # registered blocks that follow
        self._live = [0] * size  # registered followers that are held or precede a held one
        self._stamp = [0] * size  # of cached blocks, that of their row in the queue
        # Rows of cached blocks, the least recently used first, and in each the last block first.
        # An entry is valid while its block has the row's stamp.
        self._queue = deque[tuple[int, list[int]]]()
        self._clock = self._num_queued = 0
        self.num_cached = self._num_kept = 0

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
        return self._refs[self._in_pool(as_ids(ids))]

    def generation(self, ids: NDArray[np.integer]) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        return self._generation[self._in_pool(as_ids(ids))]

    def has_content(self, block: int) -> bool:
        """Whether a block is held or cached."""
        return 0 <= block < self.num_blocks and bool(self._refs[block] or self._hash[block])

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        row = self._in_pool(as_ids(ids))
        if np.count_nonzero(self._refs[row]) < row.size:
            raise self._refusal(ids, "not all are held")
        if not self._are_distinct(row):
            raise self._refusal(ids, "one is named twice")

    def acquire(self, count: int) -> Ids:
        """Take blocks, evicting cached ones if need be; raises ``OutOfBlocks``."""
        if not 0 <= count <= self.num_unused:
            if not 0 <= count <= self.num_free:
                raise OutOfBlocks(
                    f"{count} {self.unit} are needed and {self.num_free} of {self.num_blocks} are "
                    "free: raise cache.num_blocks, or lower concurrency or context. Nothing was "
                    "changed."
                )
            self._evict(count - self.num_unused)
        end = self.num_unused
        ids = self._free[end - count : end].copy()
        self._serial += 1
        self._generation[ids] = self._serial
        self._refs[ids] = 1
        self.num_unused = end - count
        if self.observers:
            self._notify("acquired", ids)
        return ids

    def allocate(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Retain ``matched`` blocks, then take ``count``; None, and nothing done, without room.

        Room is never made of the matched ones.
        """
        if not 0 <= count <= self.num_unused:
            needed = self._needed(self._known(as_ids(matched)))
            if not 0 <= count <= self.num_free - needed:
                return None
        self.retain(matched)
        return self.acquire(count)

    def retain(self, ids: Ids) -> None:
        """Add a holder to held or cached blocks, one for each time a block is named."""
        row = as_ids(ids)
        numbers = self._known(row)
        np.add.at(self._refs, row, 1)
        for number in numbers:
            if self._stamp[number]:
                self._stamp[number] = 0
                self.num_cached -= 1
                if self._live[number]:
                    self._num_kept -= 1
                else:
                    self._follow(self._parent[number], 1)
        if self.observers and row.size:
            self._notify("retained", row)

    def release(self, ids: NDArray[np.integer], generations: Ids | None = None) -> int:
        """Take a holder from each block, for each time it is named; ids in order of their chain.

        One without holders is cached if it is registered, the last of a chain to be evicted
        first, and free otherwise. Returns how many are without holders now.

        Raises:
            NotOwner: A block has fewer holders, or, with ``generations`` as they were when it
                was acquired, a newer one.
        """
        row = self._in_pool(as_ids(ids))
        if generations is not None and (
            self._generation[row].tobytes() != as_ids(generations).tobytes()
        ):
            raise self._refusal(ids, "not all are still held by who took them")
        if self._ones.startswith(self._refs[row].tobytes()) and self._are_distinct(row):
            self._refs[row] = 0
            done = row
        else:
            done = self._drop(row)
        freed = done
        evicted: list[int] = []
        if self._by_hash:
            registered = [number for number in done.tolist() if self._hash[number]]
            if registered and self.policy == "lru":
                freed = np.array([n for n in done.tolist() if not self._hash[n]], dtype=np.int64)
                self._cache(registered)
            else:
                evicted = registered[::-1]
        hashes = self._forget(evicted) if evicted else []
        if freed.size:
            self._put_back(freed)
        if self.observers and row.size:
            self._notify("released", row)
            if evicted:
                self._notify("evicted", np.array(evicted), hashes)
        return done.size

    def _drop(self, row: Ids) -> Ids:
        """Take holders, for each time a block is named; returns those that have none now."""
        counts = Counter(row.tolist())
        blocks, times = np.array(list(counts)), np.array(list(counts.values()))
        left = self._refs[blocks] - times
        if (left < 0).any():
            reason = "one has fewer holders" if self._refs[blocks].all() else "not all are held"
            raise self._refusal(row, reason)
        self._refs[blocks] = left
        done: Ids = blocks[left == 0]
        return done

    def _cache(self, numbers: list[int]) -> None:
        """Registered blocks are without holders from now on."""
        self._enqueue(numbers)
        self.num_cached += len(numbers)
        ends = [number for number in numbers if not self._live[number]]
        self._num_kept += len(numbers) - len(ends)
        for number in ends:
            self._follow(self._parent[number], -1)

    def _forget(self, numbers: list[int]) -> list[int]:
        """Remove the hashes of blocks, returned in order; followers begin new chains."""
        hashes = self._drop_hashes(numbers)
        for number in numbers:
            above = self._parent[number]
            self._children[above] -= 1
            self._live[above] -= 1
            if self._children[number]:
                self._parent = [self.num_blocks if p == number else p for p in self._parent]
                self._children[number] = self._live[number] = 0
        return hashes

    def _drop_hashes(self, numbers: list[int]) -> list[int]:
        """Remove the hashes of blocks; returns them in order."""
        hash_of, by_hash = self._hash, self._by_hash
        hashes = [hash_of[number] for number in numbers]
        for number, hash_ in zip(numbers, hashes, strict=True):
            hash_of[number] = NO_HASH
            same = by_hash[hash_]
            if len(same) == 1:
                del by_hash[hash_]
            else:
                same.remove(number)
        return hashes

    def num_freed(self, ids: NDArray[np.integer]) -> int:
        """Blocks that ``release`` of held ``ids`` would free, at least."""
        times = Counter(self._in_pool(as_ids(ids)).tolist())
        return sum(self._refs[n] == t and not self._hash[n] for n, t in times.items())

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
        row = self._in_pool(as_ids(ids))
        numbers = row.tolist()
        if not len(numbers) == len(hashes) == len(parents):
            raise CacheError(
                f"{len(numbers)} blocks, {len(hashes)} hashes and {len(parents)} parents were "
                "given: give one of each for every block. Nothing was changed."
            )
        if np.count_nonzero(self._refs[row]) < row.size:
            raise self._refusal(ids, "not all are held")
        by_hash, hash_of = self._by_hash, self._hash
        here: dict[int, int] = {}
        new: dict[int, tuple[int, int]] = {}
        for number, hash_, parent in zip(numbers, hashes, parents, strict=True):
            known = hash_of[number] or (number in new and new[number][0])
            if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
                raise CacheError(
                    f"block {number} has hash {known} and cannot get {hash_}: 0 and −1 are no "
                    "hashes, and content keeps its own. Nothing was changed."
                )
            if not known:
                if parent in here or not parent:
                    above = here[parent] if parent else self.num_blocks
                elif parent in by_hash:
                    above = by_hash[parent][0]
                else:
                    raise CacheError(
                        f"block {number} is to follow hash {parent}, which no block has: register "
                        "a chain from its first block on. Nothing was changed."
                    )
                new[number] = hash_, above
            here[hash_] = number
        for number, (hash_, above) in new.items():
            by_hash.setdefault(hash_, []).append(number)
            hash_of[number], self._parent[number] = hash_, above
            self._children[above] += 1
            self._follow(above, 1)
        if self.observers:
            self._notify("registered", ids, hashes)

    def find(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one, int64[n]: retain them next."""
        found: list[int] = []
        for hash_ in hashes:
            same = self._by_hash.get(hash_)
            if same is None:
                break
            found.append(same[0])
        return np.array(found, dtype=np.int64)

    def touch(self, ids: Ids) -> None:
        """Make cached blocks the most recently used, the last of them to be evicted first."""
        numbers = [n for n in dict.fromkeys(ids.tolist()) if 0 <= n < self.num_blocks]
        self._enqueue([number for number in numbers if self._stamp[number]])

    def evict(self, count: int) -> bool:
        """Free the ``count`` least recently used cached blocks; False if there are fewer."""
        enough = 0 <= count <= self.num_evictable
        if enough:
            self._evict(count)
        return enough

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Take all blocks from their holders; without ``preserve_prefix_cache``, forget all."""
        if preserve_prefix_cache and self.policy == "lru":
            held = np.flatnonzero(self._refs)
            self._refs[held] = 1
            self.release(held)
            return
        out = np.array([n for n in range(self.num_blocks) if self.has_content(n)], np.int64)
        self._clear()
        self._put_back(out)
        if self.observers:
            self._notify("reset", out)

    def _enqueue(self, numbers: list[int]) -> None:
        """Make distinct cached blocks the most recently used, the last of them the first to go."""
        if not numbers:
            return
        stamp = self._stamp
        if self._num_queued > 4 * self.num_blocks:  # most are no longer valid
            rows = reversed(self._queue)
            valid = [n for when, row in rows for n in row if stamp[n] == when]
            self._queue.clear()
            self._num_queued = 0
            self._enqueue(valid)
        self._clock += 1
        for number in numbers:
            stamp[number] = self._clock
        self._queue.append((self._clock, numbers))
        self._num_queued += len(numbers)

    def _evict(self, count: int) -> None:
        stamp, children, parent = self._stamp, self._children, self._parent
        numbers: list[int] = []
        wanted = count
        while wanted:
            when, row = self._queue[0]
            while row and wanted:
                number = row.pop()
                if stamp[number] != when:
                    continue
                if children[number]:
                    stamp[number] = _PASSED
                    continue
                stamp[number] = 0
                numbers.append(number)
                wanted -= 1
                above = parent[number]
                children[above] -= 1
                if stamp[above] == _PASSED and not children[above]:
                    stamp[above] = when
                    row.append(above)
            if not row:
                self._queue.popleft()
        hashes = self._drop_hashes(numbers)
        self.num_cached -= count
        ids = np.array(numbers, dtype=np.int64)
        self._put_back(ids)
        if self.observers and count:
            self._notify("evicted", ids, hashes)

    def _put_back(self, ids: Ids) -> None:
        end = self.num_unused + ids.size
        self._free[self.num_unused : end] = ids
        self.num_unused = end
        if self.on_freed is not None:
            self.on_freed(ids)

    def _follow(self, number: int, change: int) -> None:
        """A follower of a block begins (1) or ceases (−1) to be held, or to precede a held one."""
        live, stamp = self._live, self._stamp
        while True:
            before = live[number]
            after = live[number] = before + change
            if not stamp[number] or (before and after):
                return
            self._num_kept += change
            number = self._parent[number]

    def _needed(self, numbers: list[int]) -> int:
        """Evictable blocks that would not be if these were retained."""
        seen: set[int] = set()
        stamp, live, parent = self._stamp, self._live, self._parent
        for number in numbers:
            above = number
            while stamp[above] and not live[above] and above not in seen:
                seen.add(above)
                above = parent[above]
        return len(seen)

    def _known(self, row: Ids) -> list[int]:
        numbers: list[int] = self._in_pool(row).tolist()
        if np.count_nonzero(self._refs[row]) < row.size:
            for number in numbers:
                if not (self._stamp[number] or self._refs[number]):
                    raise self._refusal(row, "not all are held or cached")
        return numbers

    def _are_distinct(self, row: Ids) -> bool:
        order = self._ids[: row.size]
        if order.size < row.size:
            return False
        self._marks[row] = order  # one named twice keeps its last
        return self._marks[row].tobytes() == order.tobytes()

    def _in_pool(self, ids: Ids) -> Ids:
        try:
            if self._ids[ids].tobytes() == ids.tobytes():
                return ids
        except IndexError:
            pass
        raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")

    def _refusal(self, ids: NDArray[np.integer], reason: str) -> NotOwner:
        shown = ", ".join(str(i) for i in ids.ravel()[:8])
        more = ", …" if ids.size > 8 else ""
        return NotOwner(f"{self.unit} {shown}{more}: {reason}. Nothing was changed.")

    def _notify(self, kind: str, ids: Ids, hashes: Sequence[int] = ()) -> None:
        for observer in self.observers:
            observer(BlockEvent(kind, ids.copy(), tuple(hashes)))


def as_ids(ids: NDArray[np.integer]) -> Ids:
    """Ids of any type of whole numbers as int64; ``NotOwner`` if they are none."""
    if ids.dtype is INT64:
        return ids  # type: ignore[return-value]
    if ids.size and ids.dtype.kind not in "iu":
        raise NotOwner(f"ids must be whole numbers, not {ids.dtype}. Nothing was changed.")
    return ids.astype(np.int64)
