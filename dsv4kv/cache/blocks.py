"""The block pool: blocks are free, held by one or several requests, or cached.

A registered block without holders stays cached until its place is needed: then the least recently
used one is evicted that no other registered block follows. Every call checks before it changes
anything, so a refused call changes nothing.

Blocks of a prompt are mostly a chain: registered, each the only follower of the one before. A
whole chain is cached, retained and evicted by operations on arrays, anything else block by block,
through views of the arrays (``…_at``), whose single cells are faster to reach.
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
# A block's claims: its holders, whether it has a hash, and how many held blocks follow it.
_REFS, _HASHED, _FOLLOWED = (1 << 32) - 1, 1 << 32, 1 << 33
_FEW = 8  # evicted one by one in less time than as a chain
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
        # Claims and followers of chains: the last of them is the last block's. Comparing bytes is
        # several times faster than comparing arrays.
        self._held_chain = np.full(num_blocks, 1 + _HASHED + _FOLLOWED)
        self._held_chain[-1] -= _FOLLOWED
        self._held_bytes = self._held_chain.tobytes()
        self._cached_bytes = np.full(num_blocks, _HASHED).tobytes()
        self._followers_bytes = (self._held_chain // _FOLLOWED).tobytes()
        self._ones = np.ones(num_blocks, dtype=np.int64).tobytes()
        self._generation = np.zeros(num_blocks, dtype=np.int64)
        self._serial = 0
        self._clear()

    def _clear(self) -> None:
        """Forget everything but the free stack.

        There is a cell more than there are blocks: the first blocks of chains follow it.
        """
        size = self.num_blocks + 1
        self._by_hash: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # other blocks with a hash, in order
        self._hash = [NO_HASH] * size
        self._claims, self._stamp, self._children = np.zeros((3, size), dtype=np.int64)
        self._parent = np.full(size, self.num_blocks, dtype=np.int64)
        self._claims_at, self._parent_at = self._claims.data, self._parent.data
        self._children_at, self._stamp_at = self._children.data, self._stamp.data
        # Rows of cached blocks, the least recently used first, and how much of each is left, the
        # last block first. An entry is valid while its block has the row's stamp.
        self._queue = deque[tuple[int, Ids, int]]()
        self._clock = self._num_queued = self.num_cached = 0
        self._num_orphans = 0  # held blocks that follow a cached one

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out: unused ones, and cached ones that can be evicted."""
        return self.num_unused + self.num_evictable

    @property
    def num_evictable(self) -> int:
        """Cached blocks that precede no held one."""
        return self.num_cached - (len(self._kept()) if self._num_orphans else 0)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_unused - self.num_cached

    def refs(self, ids: Ids) -> Ids:
        """Holders of blocks, int64[n]; ``NotOwner`` beyond the pool."""
        refs: Ids = self._claims[self._in_pool(as_ids(ids))] & _REFS
        return refs

    def generation(self, ids: NDArray[np.integer]) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        return self._generation[self._in_pool(as_ids(ids))]

    def has_content(self, block: int) -> bool:
        """Whether a block is held or cached."""
        return 0 <= block < self.num_blocks and self._claims_at[block] & (_REFS | _HASHED) != 0

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        row = self._in_pool(as_ids(ids))
        claims = self._claims[row]
        if not self._ones.startswith(claims.tobytes()) and not (claims & _REFS).all():
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
        self._claims[ids] = 1
        self.num_unused = end - count
        if self.observers:
            self._notify("acquired", ids)
        return ids

    def allocate(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Retain ``matched`` blocks, then take ``count``; None, and nothing done, without room.

        Room is never made of the matched ones.
        """
        if not 0 <= count <= self.num_unused:
            seen = self._kept()
            kept = len(seen)
            self._climb(self._known(as_ids(matched)), seen)
            if not 0 <= count <= self.num_free - (len(seen) - kept):
                return None
        self.retain(matched)
        return self.acquire(count)

    def retain(self, ids: Ids) -> None:
        """Add a holder to held or cached blocks, one for each time a block is named."""
        row = as_ids(ids)
        if self._are_chain(row, self._cached_bytes):
            self._claims[row] = self._held_chain[-row.size :]
            self._stamp[row] = 0
            self.num_cached -= row.size
            self._follow(self._parent_at[row.item(0)], 1)
        else:
            for number in self._known(row):
                self._claims_at[number] += 1
                if self._stamp_at[number]:
                    self._stamp_at[number] = 0
                    self.num_cached -= 1
                    self._num_orphans -= self._claims_at[number] // _FOLLOWED
                    self._follow(self._parent_at[number], 1)
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
        row = as_ids(ids)
        if generations is not None and (
            self.generation(row).tobytes() != as_ids(generations).tobytes()
        ):
            raise self._refusal(ids, "not all are still held by who took them")
        if self.policy == "lru" and self._by_hash and self._are_chain(row, self._held_bytes):
            self._cache_chain(row)
            if self.observers:
                self._notify("released", row)
            return row.size
        evicted: list[int] = []
        if parts := self._split(row):
            done, (chain, freed) = row.size, parts
            self._claims[freed] = 0
            if chain.size:
                self._cache_chain(chain)
        else:
            done, freed, evicted = self._release_each(row)
        hashes = self._forget(evicted) if evicted else []
        if freed.size:
            self._put_back(freed)
        if self.observers and row.size:
            self._notify("released", row)
            if evicted:
                self._notify("evicted", np.array(evicted), hashes)
        return done

    def _cache_chain(self, row: Ids) -> None:
        self._claims[row] = _HASHED
        self._follow(self._parent_at[row.item(0)], -1)
        self.num_cached += row.size
        self._enqueue(row)

    def _split(self, row: Ids) -> tuple[Ids, Ids] | None:
        """A chain to cache and blocks without a hash, all held once; None of anything else."""
        chain, plain = NO_BLOCKS, row
        claims = self._claims[self._in_pool(row)]
        if not self._ones.startswith(claims.tobytes()):
            hashed = claims >= _HASHED
            chain, plain = row[hashed], row[~hashed]
            if self.policy != "lru" or not self._are_chain(chain, self._held_bytes):
                return None
            if not self._ones.startswith(self._claims[plain].tobytes()):
                return None
        return (chain, plain) if self._are_distinct(plain) else None

    def _release_each(self, row: Ids) -> tuple[int, Ids, list[int]]:
        """Take holders: how many blocks have none now, which are free, which lose their hash."""
        times = Counter(row.tolist())
        claims = self._claims_at
        if any(claims[number] & _REFS < count for number, count in times.items()):
            all_held = all(claims[number] & _REFS for number in times)
            reason = "one has fewer holders" if all_held else "not all are held"
            raise self._refusal(row, reason)
        for number, count in times.items():
            claims[number] -= count
        done = [number for number in times if not claims[number] & _REFS]
        registered = [number for number in done if claims[number]]
        freed = [number for number in done if not claims[number]]
        if self.policy != "lru":
            return len(done), np.array(done, dtype=np.int64), registered[::-1]
        self._enqueue(np.array(registered, dtype=np.int64))
        self.num_cached += len(registered)
        for number in registered:
            self._num_orphans += claims[number] // _FOLLOWED
        for number in registered:
            self._follow(self._parent_at[number], -1)
        return len(done), np.array(freed, dtype=np.int64), []

    def _follow(self, number: int, change: int) -> None:
        """A registered follower of a block begins (1) or ceases (−1) to be held."""
        self._claims_at[number] += change * _FOLLOWED
        if self._stamp_at[number]:
            self._num_orphans += change

    def _kept(self) -> set[int]:
        """Cached blocks that precede held ones: none as long as prefixes are held as a whole."""
        kept: set[int] = set()
        if self._num_orphans:
            held = (self._claims & _REFS != 0) & (self._claims >= _HASHED)
            self._climb(self._parent[held].tolist(), kept)
        return kept

    def _climb(self, numbers: list[int], seen: set[int]) -> None:
        """Add cached blocks and all that precede them to ``seen``."""
        for number in numbers:
            above = number
            while self._stamp_at[above] and above not in seen:
                seen.add(above)
                above = self._parent_at[above]

    def _forget(self, numbers: list[int]) -> list[int]:
        """Remove the hashes of released blocks, returned in order; followers begin new chains."""
        hashes = self._drop_hashes(numbers)
        for number in numbers:
            above = self._parent_at[number]
            self._children_at[above] -= 1
            self._claims_at[above] -= _FOLLOWED
            if self._children_at[number]:
                self._parent[self._parent == number] = self.num_blocks
                self._children_at[number] = 0
        self._claims[numbers] = 0
        return hashes

    def _drop_hashes(self, numbers: list[int]) -> list[int]:
        """Remove the hashes of blocks; returns them in order."""
        hash_of, by_hash, twins = self._hash, self._by_hash, self._twins
        hashes = [hash_of[number] for number in numbers]
        for number, hash_ in zip(numbers, hashes, strict=True):
            hash_of[number] = NO_HASH
            found = by_hash.pop(hash_)
            if twins and hash_ in twins:
                by_hash[hash_], *others = [n for n in (found, *twins.pop(hash_)) if n != number]
                if others:
                    twins[hash_] = others
        return hashes

    def num_freed(self, ids: NDArray[np.integer]) -> int:
        """Blocks that ``release`` of held ``ids`` would free, at least."""
        times = Counter(self._in_pool(as_ids(ids)).tolist())
        return sum(self._claims_at[n] == t for n, t in times.items())  # and without a hash

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
        if not (self._claims[row] & _REFS).all():
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
                above = here.get(parent, by_hash.get(parent)) if parent else self.num_blocks
                if above is None:
                    raise CacheError(
                        f"block {number} is to follow hash {parent}, which no block has: register "
                        "a chain from its first block on. Nothing was changed."
                    )
                new[number] = hash_, above
            here[hash_] = number
        for number, (hash_, above) in new.items():
            if by_hash.setdefault(hash_, number) != number:
                self._twins.setdefault(hash_, []).append(number)
            hash_of[number], self._parent_at[number] = hash_, above
            self._claims_at[number] += _HASHED
            self._children_at[above] += 1
            self._follow(above, 1)
        if self.observers:
            self._notify("registered", ids, hashes)

    def find(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one, int64[n]: retain them next."""
        found: list[int] = []
        for hash_ in hashes:
            block = self._by_hash.get(hash_)
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

    def _enqueue(self, row: Ids) -> None:
        """Make distinct cached blocks the most recently used, the last of them the first to go."""
        if not row.size:
            return
        if self._num_queued > 4 * self.num_blocks:  # most are no longer valid
            rows = [(when, each[:left]) for when, each, left in reversed(self._queue)]
            valid = [each[self._stamp[each] == when] for when, each in rows]
            self._queue.clear()
            self._num_queued = 0
            self._enqueue(np.concatenate([*valid, NO_BLOCKS]))
        self._clock += 1
        self._stamp[row] = self._clock
        self._queue.append((self._clock, row.copy(), row.size))
        self._num_queued += row.size

    def _evict(self, count: int) -> None:
        numbers: list[int] = []
        while (wanted := count - len(numbers)) > 0:
            when, row, left = self._queue[0]
            end = row[max(0, left - wanted) : left] if wanted > _FEW else NO_BLOCKS
            if end.size > _FEW and self._is_end(end, when):
                self._children[end] = self._stamp[end] = self._claims[end] = 0
                numbers += end[::-1].tolist()
                number = self._parent_at[end.item(0)]
                left = self._lose_follower(number, when, row, left - end.size)
            else:
                left = self._evict_each(when, row, left, count, numbers)
            if left:
                self._queue[0] = when, row, left
            else:
                self._queue.popleft()
        hashes = self._drop_hashes(numbers)
        self.num_cached -= count
        ids = np.array(numbers, dtype=np.int64)
        self._put_back(ids)
        if self.observers and count:
            self._notify("evicted", ids, hashes)

    def _is_end(self, row: Ids, stamp: int) -> bool:
        """Whether cached blocks are the end of a chain, all with this stamp."""
        return (
            self._followers_bytes.endswith(self._children[row].tobytes())
            and self._are_chain(row, self._cached_bytes)
            and not np.count_nonzero(self._stamp[row] != stamp)
        )

    def _evict_each(self, when: int, row: Ids, left: int, count: int, numbers: list[int]) -> int:
        """Evict blocks at a row's end that none follows; how much of the row is left."""
        stamp, children = self._stamp_at, self._children_at
        while left and len(numbers) < count:
            left -= 1
            number = row.item(left)
            if stamp[number] != when:
                continue
            if children[number]:
                stamp[number] = _PASSED
                continue
            stamp[number] = self._claims_at[number] = 0
            numbers.append(number)
            left = self._lose_follower(self._parent_at[number], when, row, left)
        return left

    def _lose_follower(self, number: int, when: int, row: Ids, left: int) -> int:
        """A block's follower was evicted: if its own turn came before, it is next in this row."""
        self._children_at[number] -= 1
        if self._stamp_at[number] != _PASSED or self._children_at[number]:
            return left
        self._stamp_at[number] = when
        row[left] = number
        return left + 1

    def _put_back(self, ids: Ids) -> None:
        end = self.num_unused + ids.size
        self._free[self.num_unused : end] = ids
        self.num_unused = end
        if self.on_freed is not None:
            self.on_freed(ids)

    def _known(self, row: Ids) -> list[int]:
        if not self._claims[self._in_pool(row)].all():
            raise self._refusal(row, "not all are held or cached")
        numbers: list[int] = row.tolist()
        return numbers

    def _are_chain(self, row: Ids, claims: bytes) -> bool:
        """Whether blocks are a chain with these claims: so in the pool and distinct, too."""
        try:
            return (
                row.item(-1) >= 0
                and claims.endswith(self._claims[row].tobytes())
                and row.tobytes().startswith(self._parent[row].tobytes()[8:])
            )
        except IndexError:  # empty, or beyond the pool
            return False

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
