"""The block pool: blocks are free, held by one or several requests, or cached.

A registered block without holders stays cached until its place is needed: then the least recently
used one is evicted that no other registered block follows. Every call checks before it changes
anything, so a refused call changes nothing.

State is in flat arrays, so that a whole chain is cached, retained or evicted in a few operations.
Single cells are read and written through views (``…_at``), which are faster than the arrays.
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
# A block's claims: its holders, whether it has a hash, and how many registered blocks that follow
# it are held or precede a held one. The upper bits of a free block are undefined.
_REFS, _HASHED, _LIVE = (1 << 32) - 1, 1 << 32, 1 << 33
_PASSED = -1  # the stamp of a cached block whose turn came while others followed it
_FEW = 8  # evicted one by one in less time than together
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
        cached (``lru``) or free immediately (``ref_zero``).
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
        self._ids = np.arange(num_blocks, dtype=np.int64)
        # Comparing bytes is several times faster than comparing arrays.
        self._ones = np.ones(num_blocks, dtype=np.int64).tobytes()
        self._chain = np.full(num_blocks, _LIVE + _HASHED + 1)  # claims of one that is held once
        self._chain[-1] -= _LIVE
        self._held_bytes = self._chain.tobytes()
        self._idle_bytes = np.full(num_blocks, _HASHED).tobytes()
        self._followers = (self._chain // _LIVE).tobytes()
        self._numbers = self._ids * _LIVE
        self._first = self._numbers[:0], b""  # as many as were asked for last, and their bytes
        self._generation = np.zeros(num_blocks, dtype=np.int64)
        self._serial = 0
        self._clear()

    def _clear(self) -> None:
        """Forget everything but the free stack.

        Arrays have one cell more than there are blocks: first blocks of a chain follow it, and it
        counts as held.
        """
        size = self.num_blocks + 1
        self._by_hash: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # other blocks with a hash, in order
        self._hash, self._claims, self._stamp = np.zeros((3, size), dtype=np.int64)
        self._parent = np.full(size, self.num_blocks, dtype=np.int64)
        self._children = np.zeros(size, dtype=np.int64)  # registered blocks that follow
        self._claims[-1] = 1
        # Rows of cached blocks, the least recently used first, and in each the last block first.
        # An entry is valid while its block has the row's stamp.
        self._queue = deque[tuple[int, Ids]]()
        self._oldest, self._oldest_stamp = list[int](), 0  # the end of the first row
        self._clock = self._num_queued = 0
        self._hash_at, self._parent_at = self._hash.data, self._parent.data
        self._children_at, self._claims_at = self._children.data, self._claims.data
        self._stamp_at = self._stamp.data
        self.num_cached = self._num_kept = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out: unused ones, and cached ones that can be evicted."""
        return self.num_unused + self.num_cached - self._num_kept

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
        return self._claims[self._in_pool(as_ids(ids))] & np.int64(_REFS)

    def generation(self, ids: NDArray[np.integer]) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        return self._generation[self._in_pool(as_ids(ids))]

    def has_content(self, block: int) -> bool:
        """Whether a block is held or cached."""
        return 0 <= block < self.num_blocks and self._claims_at[block] & (_REFS | _HASHED) != 0

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        row = as_ids(ids)
        if self._free_plain(row):
            self._claims[row] = 1
            return
        if self._are_chain(row, self._held_bytes):
            return
        if not self._are_in_pool(row) or np.count_nonzero(self._claims[row] & _REFS) < row.size:
            raise self._refusal(ids, "not all are held")
        if len(set(row.tolist())) < row.size:
            raise self._refusal(ids, "one is named twice")

    def holds_room(self, count: int, matched: Ids = NO_BLOCKS) -> bool:
        """Whether ``count`` blocks can be had once ``matched`` ones have been retained."""
        return 0 <= count <= self.num_free - self._needed(matched)

    def acquire(self, count: int) -> Ids:
        """Take blocks, evicting cached ones if need be; raises ``OutOfBlocks``."""
        if not 0 <= count <= self.num_unused and not 0 <= count <= self.num_free:
            raise OutOfBlocks(
                f"{count} {self.unit} are needed and {self.num_free} of {self.num_blocks} are "
                "free: raise cache.num_blocks, or lower concurrency or context. Nothing was "
                "changed."
            )
        if count > self.num_unused:
            self._evict(count - self.num_unused)
        end = self.num_unused
        ids = self._free[end - count : end].copy()
        self._serial += 1
        self._generation[ids] = self._serial
        self._claims[ids] = 1
        self.num_unused = end - count
        if self.observers:
            self._notify("acquired", ids)
        return ids

    def allocate(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Retain ``matched`` blocks, then take ``count``; None, and nothing done, without room.

        Room is never made of the matched ones.
        """
        if matched.size:
            self._check_known(as_ids(matched))
        if not self.holds_room(count, matched):
            return None
        self.retain(matched)
        return self.acquire(count)

    def retain(self, ids: Ids) -> None:
        """Add a holder to held or cached blocks, one for each time a block is named."""
        row = as_ids(ids)
        if self._are_chain(row, self._idle_bytes):
            self._claims[row] = self._chain[-row.size :]
            self._stamp[row] = 0
            self.num_cached -= row.size
            self._follow(self._parent_at[row.item(0)], 1)
        else:
            self._check_known(row)
            blocks, times = _count(row)
            cached = self._stamp[blocks] != 0
            for number in blocks[cached].tolist():
                if self._claims_at[number] >= _LIVE:
                    self._num_kept -= 1
                else:
                    self._follow(self._parent_at[number], 1)
                self._claims_at[number] += 1
            self._claims[blocks] += times - cached
            self._stamp[blocks] = 0
            self.num_cached -= int(cached.sum())
        if self.observers and row.size:
            self._notify("retained", ids)

    def release(self, ids: NDArray[np.integer], generations: Ids | None = None) -> int:
        """Take a holder from each block, for each time it is named; ids in order of their chain.

        One without holders is cached if it is registered, the last of a chain to be evicted
        first, and free otherwise. Returns how many are without holders now.

        Raises:
            NotOwner: A block has fewer holders, or, with ``generations`` as they were when it
                was acquired, a newer one.
        """
        row = as_ids(ids)
        if generations is not None and (
            self.generation(ids).tobytes() != as_ids(generations).tobytes()
        ):
            raise self._refusal(ids, "not all are still held by who took them")
        done, freed, evicted = self._release_together(row) or self._release_each(row)
        if freed.size:
            self._put_back(freed)
        if self.observers and row.size:
            self._notify("released", row)
            if evicted:
                numbers, hashes = zip(*evicted, strict=True)
                self._notify("evicted", np.array(numbers), hashes)
        return done

    def num_freed(self, ids: NDArray[np.integer]) -> int:
        """Blocks that ``release`` of held ``ids`` would free, at least."""
        blocks, times = _count(as_ids(ids))
        alone = self._claims[self._in_pool(blocks)] == times  # and without a hash
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
        row = as_ids(ids)
        numbers = self._in_pool(row).tolist()
        claims_at, hash_at, twins = self._claims_at, self._hash_at, self._twins
        if not len(numbers) == len(hashes) == len(parents):
            raise CacheError(
                f"{len(numbers)} blocks, {len(hashes)} hashes and {len(parents)} parents were "
                "given: give one of each for every block. Nothing was changed."
            )
        by_hash, here = self._by_hash, dict[int, int]()
        new: dict[int, tuple[int, int]] = {}
        for number, hash_, parent in zip(numbers, hashes, parents, strict=True):
            if not claims_at[number] & _REFS:
                raise self._refusal(ids, "not all are held")
            known = hash_at[number] or (number in new and new[number][0])
            if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
                raise CacheError(
                    f"block {number} has hash {known} and cannot get {hash_}: 0 and −1 are no "
                    "hashes, and content keeps its own. Nothing was changed."
                )
            if not known:
                above = here.get(parent, by_hash.get(parent)) if parent else self.num_blocks
                if above is None:
                    raise CacheError(
                        f"block {number} is to follow hash {parent}, which no block has: register "
                        "a chain from its first block on. Nothing was changed."
                    )
                new[number] = hash_, above
            here[hash_] = number
        self._hash[list(new)] = [hash_ for hash_, _ in new.values()]  # refused beyond int64
        for number, (hash_, above) in new.items():
            if by_hash.setdefault(hash_, number) != number:
                twins.setdefault(hash_, []).append(number)
            claims_at[number] += _HASHED
            self._parent_at[number] = above
            self._children_at[above] += 1
            self._follow(above, 1)
        if self.observers:
            self._notify("registered", ids, hashes)

    def find(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one, int64[n]: retain them next."""
        found, by_hash = list[int](), self._by_hash
        for hash_ in hashes:
            block = by_hash.get(hash_)
            if block is None:
                break
            found.append(block)
        return np.array(found, dtype=np.int64)

    def touch(self, ids: Ids) -> None:
        """Make cached blocks the most recently used, the last of them to be evicted first."""
        numbers = [n for n in dict.fromkeys(ids.tolist()) if 0 <= n < self.num_blocks]
        row = np.array(numbers, dtype=np.int64)
        self._enqueue(row[self._stamp[row] != 0])

    def evict(self, count: int) -> bool:
        """Free the ``count`` least recently used cached blocks; False if there are fewer."""
        enough = 0 <= count <= self.num_evictable
        if enough:
            self._evict(count)
        return enough

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Take all blocks from their holders; without ``preserve_prefix_cache``, forget all."""
        if preserve_prefix_cache and self.policy == "lru":
            held = np.flatnonzero(self._claims[:-1] & _REFS)
            self._claims[held] = self._claims[held] & ~_REFS | 1
            self.release(held)
            return
        out = np.flatnonzero(self._claims[:-1] & (_REFS | _HASHED))
        self._clear()
        self._put_back(out)
        if self.observers:
            self._notify("reset", out)

    def _release_together(self, row: Ids) -> tuple[int, Ids, list[tuple[int, int]]] | None:
        """Release a whole chain that is held once, plain blocks, or both; None elsewhere."""
        chain, plain = row, NO_BLOCKS
        if not self._are_chain(row, self._held_bytes):
            if self._free_plain(row):
                return row.size, row, []
            hashed = self._hash[self._in_pool(row)] != NO_HASH
            if hashed.all():
                return None
            chain, plain = row[hashed], row[~hashed]
            if not (self._are_chain(chain, self._held_bytes) and self._free_plain(plain)):
                return None
        self._claims[chain] = _HASHED
        self._follow(self._parent_at[chain.item(0)], -1)
        if self.policy == "lru":
            self.num_cached += chain.size
            self._enqueue(chain)
            return row.size, plain, []
        evicted = list(zip(chain.tolist(), self._forget_chain(chain), strict=True))
        return row.size, row, evicted[::-1]

    def _release_each(self, row: Ids) -> tuple[int, Ids, list[tuple[int, int]]]:
        """Release blocks one by one; how many are done, which are free, which lost which hash."""
        blocks, times = _count(row)
        claims = self._claims[blocks]
        refs = claims & _REFS
        if (refs < times).any():
            reason = "one has fewer holders" if refs.all() else "not all are held"
            raise self._refusal(row, reason)
        last = refs == times
        self._claims[blocks] = np.where(last, claims, claims - times)
        if not last.any():
            return 0, NO_BLOCKS, []
        done, keeps = blocks[last].tolist(), self.policy == "lru"
        freed, evicted, cached = list[int](), list[tuple[int, int]](), list[int]()
        for number in reversed(done):
            claims = self._claims_at[number] = self._claims_at[number] & ~_REFS
            if not claims:
                freed.append(number)
                continue
            if claims >= _LIVE and keeps:
                self._num_kept += 1
            else:
                self._follow(self._parent_at[number], -1)
            if keeps:
                cached.append(number)
            else:
                freed.append(number)
                evicted.append((number, self._forget(number)))
        self.num_cached += len(cached)
        self._enqueue(np.array(cached[::-1], dtype=np.int64))
        return len(done), np.array(freed[::-1], dtype=np.int64), evicted

    def _enqueue(self, row: Ids) -> None:
        """Make distinct cached blocks the most recently used, the last of them the first to go."""
        if not row.size:
            return
        self._num_queued += row.size
        if self._num_queued > 4 * self.num_blocks and self._queue:  # most are no longer valid
            stamps, rows = zip(*reversed(self._queue), strict=True)
            every = np.concatenate(rows)
            valid = every[self._stamp[every] == np.repeat(stamps, [len(each) for each in rows])]
            self._queue.clear()
            self._num_queued = 0
            self._enqueue(valid)
        self._clock += 1
        self._stamp[row] = self._clock
        self._queue.append((self._clock, row.copy()))

    def _evict(self, count: int) -> None:
        hashes, numbers = list[int](), list[int]()
        stamp_at, children_at = self._stamp_at, self._children_at
        while len(numbers) < count:
            if not self._oldest:
                self._evict_ends(count, numbers, hashes)
                continue
            number = self._oldest.pop()
            if stamp_at[number] == self._oldest_stamp:
                if children_at[number]:
                    stamp_at[number] = _PASSED
                else:
                    numbers.append(number)
                    hashes.append(self._forget(number))
        self.num_cached -= count
        ids = np.array(numbers, dtype=np.int64)
        self._put_back(ids)
        if self.observers and count:
            self._notify("evicted", ids, hashes)

    def _evict_ends(self, count: int, numbers: list[int], hashes: list[int]) -> None:
        """Evict the end of the oldest row if it is one of a chain, else take it apart."""
        stamp, row = self._queue.popleft()
        wanted = count - len(numbers)
        end = row[-wanted:]
        if (
            end.size > _FEW
            and self._followers.endswith(self._children[end].tobytes())
            and self._are_chain(end, self._idle_bytes)
            and not (self._stamp[end] != stamp).any()
        ):
            numbers += end[::-1].tolist()
            hashes += self._forget_chain(end)[::-1]
        else:
            end = row[-max(wanted, 64) :]
            self._oldest, self._oldest_stamp = end.tolist(), stamp
        if end.size < row.size:
            self._queue.appendleft((stamp, row[: -end.size]))

    def _put_back(self, ids: Ids) -> None:
        end = self.num_unused + ids.size
        self._free[self.num_unused : end] = ids
        self.num_unused = end
        if self.on_freed is not None:
            self.on_freed(ids)

    def _forget_chain(self, row: Ids) -> list[int]:
        """The end of a chain without holders loses its hashes, which are returned."""
        hashes: list[int] = self._hash[row].tolist()
        above = self._parent_at[row.item(0)]
        if self._twins:
            for number, hash_ in zip(row.tolist(), hashes, strict=True):
                self._forget_hash(number, hash_)
        else:
            for hash_ in hashes:
                del self._by_hash[hash_]
        for array in (self._hash, self._children, self._stamp, self._claims):
            array[row] = 0
        self._parent[row] = self.num_blocks
        self._lose_follower(above)
        return hashes

    def _forget(self, number: int) -> int:
        """A block without holders loses its hash, which is returned; followers begin a chain."""
        if self._children_at[number]:
            self._parent[self._parent == number] = self.num_blocks
            self._children_at[number] = 0
        hash_, above = self._hash_at[number], self._parent_at[number]
        self._forget_hash(number, hash_)
        self._hash_at[number] = self._stamp_at[number] = self._claims_at[number] = 0
        self._parent_at[number] = self.num_blocks
        self._lose_follower(above)
        return hash_

    def _forget_hash(self, number: int, hash_: int) -> None:
        found = self._by_hash.pop(hash_)
        if hash_ in self._twins:
            same = [found, *self._twins.pop(hash_)]
            same.remove(number)
            self._by_hash[hash_], *twins = same
            if twins:
                self._twins[hash_] = twins

    def _lose_follower(self, number: int) -> None:
        self._children_at[number] -= 1
        if self._stamp_at[number] == _PASSED and not self._children_at[number]:
            self._stamp_at[number] = self._oldest_stamp
            self._oldest.append(number)

    def _follow(self, number: int, change: int) -> None:
        """A follower of a block begins (1) or ceases (−1) to be held, or to precede a held one."""
        claims_at = self._claims_at
        while True:
            before = claims_at[number]
            after = claims_at[number] = before + change * _LIVE
            if before & _REFS or (before >= _LIVE and after >= _LIVE):
                return
            self._num_kept += change
            number = self._parent_at[number]

    def _needed(self, matched: Ids) -> int:
        """Evictable blocks that would not be if ``matched`` ones were retained."""
        seen = set[int]()
        for number in matched.tolist():
            while self._claims_at[number] == _HASHED and number not in seen:
                seen.add(number)
                number = self._parent_at[number]  # noqa: PLW2901
        return len(seen)

    def _are_chain(self, row: Ids, claims: bytes) -> bool:
        """Whether registered blocks follow each other, and their claims are the last of some.

        Then they are in the pool and distinct, too.
        """
        try:
            return (
                row.item(-1) >= 0
                and claims.endswith(self._claims[row].tobytes())
                and row.tobytes().startswith(self._parent[row].tobytes()[8:])
            )
        except IndexError:  # empty, or beyond the pool
            return False

    def _check_known(self, row: Ids) -> None:
        known = self._claims[self._in_pool(row)] & (_REFS | _HASHED)
        if np.count_nonzero(known) < row.size:
            raise self._refusal(row, "not all are held or cached")

    def _free_plain(self, row: Ids) -> bool:
        """Blocks become free; False, and nothing changed, unless each has one holder, no hash."""
        claims, (numbers, as_bytes) = self._claims, self._first
        if row.size != len(numbers):
            numbers = self._numbers[: row.size]
            as_bytes = numbers.tobytes()
            self._first = numbers, as_bytes
        if not self._are_in_pool(row) or not self._ones.startswith(claims[row].tobytes()):
            return False
        # Each gets a number of its own; one named twice no longer has its first.
        claims[row] = numbers
        if claims[row].tobytes() == as_bytes:
            return True
        claims[row] = 1
        return False

    def _in_pool(self, ids: Ids) -> Ids:
        if not self._are_in_pool(ids):
            raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")
        return ids

    def _are_in_pool(self, ids: Ids) -> bool:
        try:
            return self._ids[ids].tobytes() == ids.tobytes()
        except IndexError:
            return False

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
    if ids.dtype is INT64:
        return ids  # type: ignore[return-value]
    if ids.size and ids.dtype.kind not in "iu":
        raise NotOwner(f"ids must be whole numbers, not {ids.dtype}. Nothing was changed.")
    return ids.astype(np.int64)


def _count(row: Ids) -> tuple[Ids, Ids | Literal[1]]:
    """Distinct blocks in the order they are first named, and how often each is."""
    numbers = row.tolist()
    if len(set(numbers)) == len(numbers):
        return row, 1
    counts = Counter(numbers)
    return np.array(list(counts)), np.array(list(counts.values()))
