"""The block pool: blocks are free, held by one or several requests, or cached.

A block that one request holds is a number in the free stack's arrays, which cost nanoseconds. One
that is shared, or registered under a hash, is a ``Block`` as well. A registered block without
holders stays cached until its place is needed: then the least recently used one goes that no other
registered block follows. Every call checks first and then changes: a refusal changes nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import CacheError, ConfigError, NotOwner, OutOfBlocks

Ids = NDArray[np.int64]
INT64 = np.dtype(np.int64)
NO_BLOCKS: Ids = np.zeros(0, dtype=np.int64)
NO_HASH = 0
_UNKNOWN = NO_HASH, NO_HASH
Policy = Literal["lru", "ref_zero"]


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change: ``acquired``, ``retained``, ``released``, ``registered``, ``evicted``, ``reset``.

    ``ids`` int64 are the blocks, ``hashes`` what they were found by (registered, evicted).
    """

    kind: str
    ids: Ids
    hashes: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Block:
    """A block that is shared or registered."""

    number: int  # its id
    refs: int = 1  # holders
    hash: int = NO_HASH  # what it is found by; ``NO_HASH``: it is not registered, or was evicted
    parent: "Block | None" = None  # the registered block before it
    children: int = 0  # registered blocks that follow
    live: int = 0  # those of them that are held, or precede a held one


class BlockPool:
    """Hands out block ids, counts their holders, finds them by hash, and evicts.

    With ``lanes`` every layer has a table of its own: ids are int64[lanes, n], equal in all lanes
    because all take and give back the same columns. A block's generation grows when it is handed
    out, so that an old holder can be distinguished from a new one.

    Attributes:
        num_blocks: Blocks 0..n−1.
        dummy_block: n, for padding rows: never handed out.
        num_unused: Blocks in the free stack.
        num_cached: Blocks without holders that are found by their hash.
        observers: Called with a ``BlockEvent`` after every change; one that raises is counted in
            ``observer_errors`` and the next is called.
        on_freed: Called with blocks whose content is gone.
    """

    def __init__(
        self, num_blocks: int, lanes: int = 1, unit: str = "blocks", policy: Policy = "lru"
    ) -> None:
        """Start with all blocks free, the lowest handed out first.

        ``unit`` is what messages call them; ``policy``: a registered block without holders is
        cached (``lru``) or free at once (``ref_zero``).
        """
        if num_blocks <= 0 or lanes <= 0:
            raise ConfigError(f"a pool of {num_blocks} {unit} cannot be: give at least 1.")
        self.num_blocks = self.dummy_block = num_blocks
        self.lanes, self.unit, self.policy = lanes, unit, policy
        self.observers: list[Callable[[BlockEvent], None]] = []
        self.observer_errors = 0
        self.on_freed: Callable[[Ids], None] | None = None
        self.num_unused, self.num_cached, self._num_kept = num_blocks, 0, 0
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        # A block with one holder and no hash is marked with its own id, any other with a number
        # that is no id. Comparing bytes of marks and ids finds all that are not held, negative
        # ids and ids named twice included, several times faster than comparing arrays.
        self._numbers = np.arange(num_blocks, 2 * num_blocks, dtype=np.int64)
        self._first = self._numbers[:0], b""  # as many as were asked for last, and their bytes
        self._mark = self._numbers.copy()
        self._mark_at = self._mark.data  # single cells, read faster than the array's
        self._generation = np.zeros(num_blocks, dtype=np.int64)
        self._serial = 0
        self._blocks: dict[int, Block] = {}
        self._by_hash: dict[int, list[Block]] = {}  # the first of them is found
        # Cached blocks, the least recently used first. One that comes up while others follow it is
        # taken out, and is the first again when the last of them goes.
        self._queue: OrderedDict[Block, None] = OrderedDict()

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
        self.generation(ids)
        return np.array([self._refs(block) for block in ids.tolist()], dtype=np.int64)

    def generation(self, ids: Ids) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        return self._generation[self._in_pool(as_ids(ids))]

    def has_content(self, block: int) -> bool:
        """Whether a block is held or cached."""
        return block in self._blocks or bool(self._refs(block))

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        row = self._row(ids)
        if self._unmark(row):
            self._mark[row] = row
            return
        numbers = row.tolist()
        if not all(map(self._refs, numbers)):
            raise self._refusal(ids, "not all are held")
        if len(set(numbers)) < len(numbers):
            raise self._refusal(ids, "one is named twice")

    def holds_room(self, count: int, matched: Ids = NO_BLOCKS) -> bool:
        """Whether ``count`` blocks can be had once ``matched`` ones have been retained."""
        return 0 <= count <= self.num_free - self._needed(matched)

    def acquire(self, count: int) -> Ids:
        """Take blocks, evicting cached ones if need be: int64[count], or int64[lanes, count].

        Raises:
            OutOfBlocks: Fewer can be had.
        """
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
        self._mark[ids] = ids
        self.num_unused = end - count
        if self.observers:
            self._notify("acquired", ids)
        return ids if self.lanes == 1 else np.tile(ids, (self.lanes, 1))

    def allocate(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Retain ``matched`` blocks, then take ``count``; None, and nothing done, without room.

        Room is never made of the matched ones.
        """
        if matched.size:
            self._check_known(matched.tolist(), matched)
        if not self.holds_room(count, matched):
            return None
        self.retain(matched)
        return self.acquire(count)

    def retain(self, ids: Ids) -> None:
        """Add a holder to held or cached blocks, one for each time a block is named."""
        numbers = self._row(ids).tolist()
        self._check_known(numbers, ids)
        for number in numbers:
            block = self._blocks.get(number)
            if block is None:
                block = self._note(number)
            elif not block.refs:
                self._queue.pop(block, None)
                self.num_cached -= 1
                if block.live:
                    self._num_kept -= 1
                else:
                    self._follow(block.parent, 1)
            block.refs += 1
        if self.observers and numbers:
            self._notify("retained", ids)

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Take a holder from each block, for each time it is named; ids in order of their chain.

        One without holders is cached if it is registered, the last of a chain to be evicted
        first, and free otherwise. Returns how many are without holders now.

        Raises:
            NotOwner: A block has fewer holders, or, with ``generations`` as they were when it
                was acquired, a newer one.
        """
        row = self._row(ids)
        if generations is not None and (
            self.generation(ids).tobytes() != as_ids(generations).tobytes()
        ):
            raise self._refusal(ids, "not all are still held by who took them")
        evicted: list[tuple[int, int]] = []
        if self._unmark(row):
            done, freed = row.size, row
        else:
            done, freed, evicted = self._release_each(row)
        end = self.num_unused + freed.size
        self._free[self.num_unused : end] = freed
        self.num_unused = end
        if self.on_freed is not None and freed.size:
            self.on_freed(freed)
        if self.observers and row.size:
            self._notify("released", row)
            if evicted:
                numbers, hashes = zip(*evicted, strict=True)
                self._notify("evicted", np.array(numbers), hashes)
        return done

    def num_freed(self, ids: Ids) -> int:
        """Blocks that ``release`` of held ``ids`` would free, at least."""
        row = self._row(ids)
        if not self._blocks:
            return row.size
        counts = Counter(row.tolist())
        return sum(
            self._refs(number) == count and not getattr(self._blocks.get(number), "hash", 0)
            for number, count in counts.items()
        )

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
        row = self._row(ids)
        numbers, plain = row.tolist(), self._are_plain(row)
        if not len(numbers) == len(hashes) == len(parents):
            raise CacheError(
                f"{len(numbers)} blocks, {len(hashes)} hashes and {len(parents)} parents were "
                "given: give one of each for every block. Nothing was changed."
            )
        blocks, by_hash, here = self._blocks, self._by_hash, dict[int, int]()
        new: dict[int, tuple[int, int]] = {}
        for number, hash_, parent, is_plain in zip(numbers, hashes, parents, plain, strict=True):
            block = None if is_plain else blocks.get(number)
            if not (is_plain or (block and block.refs)):
                raise self._refusal(ids, "not all are held")
            known = (block.hash if block else NO_HASH) or new.get(number, _UNKNOWN)[0]
            if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
                raise CacheError(
                    f"block {number} has hash {known} and cannot get {hash_}: 0 and −1 are no "
                    "hashes, and content keeps its own. Nothing was changed."
                )
            if not known:
                if parent != NO_HASH and parent not in here and parent not in by_hash:
                    raise CacheError(
                        f"block {number} is to follow hash {parent}, which no block has: register "
                        "a chain from its first block on. Nothing was changed."
                    )
                new[number] = hash_, parent
            here[hash_] = number
        for number, (hash_, parent) in new.items():
            block = blocks.get(number) or self._note(number)
            block.hash = hash_
            by_hash.setdefault(hash_, []).append(block)
            if parent != NO_HASH:
                before = here.get(parent)
                block.parent = above = by_hash[parent][0] if before is None else blocks[before]
                above.children += 1
                self._follow(above, 1)
        if self.observers:
            self._notify("registered", ids, hashes)

    def find(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one, int64[n]: retain them next."""
        found, by_hash = list[int](), self._by_hash
        for hash_ in hashes:
            if hash_ not in by_hash:
                break
            found.append(by_hash[hash_][0].number)
        return np.array(found, dtype=np.int64)

    def touch(self, ids: Ids) -> None:
        """Make cached blocks the most recently used, the last of them to be evicted first."""
        for number in reversed(ids.tolist()):
            block = self._blocks.get(number)
            if block is not None and not block.refs:
                self._queue[block] = None
                self._queue.move_to_end(block)

    def evict(self, count: int) -> bool:
        """Free the ``count`` least recently used cached blocks; False if there are fewer."""
        if count > self.num_evictable:
            return False
        self._evict(count)
        return True

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Take all blocks from their holders; without ``preserve_prefix_cache``, forget all."""
        plain = np.flatnonzero(self._mark == np.arange(self.num_blocks))
        if preserve_prefix_cache and self.policy == "lru":
            held = [block for block in self._blocks.values() if block.refs]
            for block in held:
                block.refs = 1
            numbers = sorted([*plain.tolist(), *(block.number for block in held)])
            self.release(np.array(numbers, dtype=np.int64))
            return
        out = np.union1d(plain, np.array(list(self._blocks), dtype=np.int64))
        self._blocks, self._by_hash, self._queue = {}, {}, OrderedDict()
        self.num_cached = self._num_kept = 0
        self._mark[out] = self._numbers[: out.size]
        self._free[self.num_unused : self.num_blocks] = out
        self.num_unused = self.num_blocks
        if self.on_freed is not None:
            self.on_freed(out)
        if self.observers:
            self._notify("reset", out)

    def _release_each(self, row: Ids) -> tuple[int, Ids, list[tuple[int, int]]]:
        """Release blocks one by one; how many are done, which are free, which lost which hash."""
        numbers, keeps = row.tolist(), self.policy == "lru"
        known = list(map(self._blocks.get, numbers))
        self._check_holders(row, numbers, known)
        freed, evicted, done = list[int](), list[tuple[int, int]](), 0
        for block, number in zip(reversed(known), reversed(numbers), strict=True):
            if block is not None:
                block.refs -= 1
                if block.refs:
                    continue
                if block.hash != NO_HASH:
                    done += 1
                    if block.live and keeps:
                        self._num_kept += 1
                    else:
                        self._follow(block.parent, -1)
                    if keeps:
                        self._queue[block] = None
                        continue
                    evicted.append((number, block.hash))
                    self._forget(block)
                else:
                    del self._blocks[number]
            freed.append(number)
        if keeps:
            self.num_cached += done
        free = np.array(freed[::-1], dtype=np.int64)
        self._mark[free] = self._numbers[: free.size]
        return done + len(freed) - len(evicted), free, evicted

    def _evict(self, count: int) -> None:
        hashes, numbers, queue = list[int](), list[int](), self._queue
        while len(numbers) < count:
            block, _ = queue.popitem(last=False)
            if block.children:
                continue
            hashes.append(block.hash)
            numbers.append(block.number)
            self._forget(block)
        self.num_cached -= count
        ids = np.array(numbers, dtype=np.int64)
        self._free[self.num_unused : self.num_unused + count] = ids
        self.num_unused += count
        if self.on_freed is not None:
            self.on_freed(ids)
        if self.observers and count:
            self._notify("evicted", ids, hashes)

    def _forget(self, block: Block) -> None:
        """A block without holders loses its hash; what follows it begins a chain."""
        same, parent = self._by_hash[block.hash], block.parent
        if len(same) == 1:
            del self._by_hash[block.hash]
        else:
            same.remove(block)
        block.hash = NO_HASH
        del self._blocks[block.number]
        if parent is not None and parent.hash != NO_HASH:
            parent.children -= 1
            if not (parent.children or parent.refs or parent in self._queue):
                self._queue[parent] = None
                self._queue.move_to_end(parent, last=False)

    def _follow(self, block: Block | None, change: int) -> None:
        """A follower of a block begins (1) or ceases (−1) to be held, or to precede a held one."""
        while block is not None and block.hash != NO_HASH:
            before = block.live
            block.live += change
            if block.refs or (before and block.live):
                return
            self._num_kept += change
            block = block.parent

    def _needed(self, matched: Ids) -> int:
        """Evictable blocks that would not be if ``matched`` ones were retained."""
        seen = set[int]()
        for number in matched.tolist():
            block = self._blocks.get(number)
            while block and block.hash and not (block.refs or block.live or block.number in seen):
                seen.add(block.number)
                block = block.parent
        return len(seen)

    def _note(self, number: int) -> Block:
        """A block with one holder gets a record."""
        block = self._blocks[number] = Block(number)
        self._mark_at[number] = number + self.num_blocks
        return block

    def _check_holders(self, row: Ids, numbers: list[int], known: list[Block | None]) -> None:
        """Refuse blocks that have fewer holders than times they are named."""
        plain = self._are_plain(row) if None in known else []
        refs = [block.refs if block else plain[at] for at, block in enumerate(known)]
        if not all(refs):
            raise self._refusal(row, "not all are held")
        if len(set(numbers)) < len(numbers):
            counts = Counter(numbers)
            if any(counts[number] > count for number, count in zip(numbers, refs, strict=True)):
                raise self._refusal(row, "one is named twice and has fewer holders")

    def _are_plain(self, row: Ids) -> list[bool]:
        """Which blocks have one holder and no hash; ``NotOwner`` beyond the pool."""
        found: list[bool] = (self._mark[self._in_pool(row)] == row).tolist()
        return found

    def _refs(self, number: int) -> int:
        block = self._blocks.get(number)
        if block is not None:
            return block.refs
        return int(0 <= number < self.num_blocks and self._mark_at[number] == number)

    def _check_known(self, numbers: Iterable[int], ids: Ids) -> None:
        if not all(map(self.has_content, numbers)):
            raise self._refusal(ids, "not all are held or cached")

    def _unmark(self, row: Ids) -> bool:
        """Mark blocks as free; False, and nothing changed, unless each has one holder, no hash."""
        mark, (numbers, as_bytes) = self._mark, self._first
        if row.size != len(numbers):
            numbers = self._numbers[: row.size]
            as_bytes = numbers.tobytes()
            self._first = numbers, as_bytes
        try:
            if mark[row].tobytes() != row.tobytes() or row.size > len(numbers):
                return False
        except IndexError:  # beyond the pool
            return False
        # Each gets a number of its own; one named twice no longer has its first.
        mark[row] = numbers
        if mark[row].tobytes() == as_bytes:
            return True
        mark[row] = row
        return False

    def _row(self, ids: Ids) -> Ids:
        """Ids of one lane; ``NotOwner`` unless all lanes name the same."""
        if ids.ndim != (1 if self.lanes == 1 else 2):
            raise self._refusal(ids, f"shape {ids.shape} is not that of {self.lanes} lanes")
        if self.lanes > 1:
            if len(ids) != self.lanes or ids[1:].tobytes() != ids[:-1].tobytes():
                raise self._refusal(ids, f"{self.lanes} lanes do not name the same blocks")
            ids = ids[0]
        return ids if ids.dtype is INT64 else as_ids(ids)

    def _in_pool(self, ids: Ids) -> Ids:
        if ids.size and ids.view(np.uint64).max() >= self.num_blocks:  # negative: the largest
            raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")
        return ids

    def _refusal(self, ids: Ids, reason: str) -> NotOwner:
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
