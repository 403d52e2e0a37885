"""``refcount``: blocks with several holders, kept for reuse when the last one is done.

In addition to the methods of every allocator, it has those of the engine whose behaviour it
reproduces, under the engine's own names.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsv4kv.cache.allocators.contract import Allocator, not_owner, out_of
from dsv4kv.cache.allocators.lanes import in_lanes
from dsv4kv.cache.allocators.routing import RoutingStore
from dsv4kv.cache.allocators.stack import INT64, Ids, as_ids
from dsv4kv.cache.allocators.states import NO_HASH, BlockStates, ReleasePolicy
from dsv4kv.errors import CacheError, ConfigError

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
                f"a pool of {total_blocks} blocks has only its dummy block: give at least 2."
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


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """One change.

    Attributes:
        kind: What happened: blocks were handed out, got another reference, lost one, became
            free, were registered (can be found by hash), or lost their content; ``reset``: all.
        ids: int64: the blocks; the receiver's own copy.
    """

    kind: Literal["acquired", "retained", "released", "registered", "evicted", "reset"]
    ids: Ids


Observer = Callable[[BlockEvent], None]


class BlockTotals:
    """An observer that counts blocks since it was made or cleared, by what happened to them."""

    def __init__(self) -> None:
        self.blocks: Counter[str] = Counter()

    def __call__(self, event: BlockEvent) -> None:
        """Count an event's blocks."""
        self.blocks[event.kind] += event.ids.size

    def clear(self) -> None:
        """Count from 0 again."""
        self.blocks.clear()


class Observers:
    """Who is notified. One that raises harms nobody: the error is kept and the next is called.

    Attributes:
        errors: How often one raised.
        last_error: What it raised last.
    """

    def __init__(self) -> None:
        self._all: list[Observer] = []
        self.errors = 0
        self.last_error: Exception | None = None

    def add(self, observer: Observer) -> None:
        """Notify an observer from now on."""
        self._all.append(observer)

    def notify(self, kind: str, ids: Ids) -> None:
        """Call every observer."""
        if not self._all:
            return
        for observer in tuple(self._all):
            try:
                observer(BlockEvent(kind, ids.copy()))  # type: ignore[arg-type]
            except Exception as error:
                self.errors += 1
                self.last_error = error


def plan_registration(
    states: BlockStates, ids: Ids, hashes: Sequence[int], parent_hashes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """What is new: (block, hash, the block before or the chains' root).

    Raises:
        CacheError: A hash cannot be, contradicts what a block has, or follows an unknown one.
    """
    if not len(ids) == len(hashes) == len(parent_hashes):
        raise CacheError(
            f"{len(ids)} blocks, {len(hashes)} hashes and {len(parent_hashes)} parents were "
            "given: give one of each for every block. Nothing was changed."
        )
    new: dict[int, tuple[int, int, int]] = {}
    here: dict[int, int] = {}  # blocks of this call, by hash
    rows = zip(np.asarray(ids).tolist(), map(int, hashes), map(int, parent_hashes), strict=True)
    for block, hash_, parent_hash in rows:
        known = new[block][1] if block in new else states.hashes.of_block_at[block]
        if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
            raise CacheError(_contradiction(block, hash_, known))
        if known == NO_HASH:
            new[block] = block, hash_, _parent(states, here, block, parent_hash)
        here[hash_] = block
    return list(new.values())


def _parent(states: BlockStates, here: dict[int, int], block: int, parent_hash: int) -> int:
    if parent_hash == NO_HASH:
        return states.chains.root
    parent = here.get(parent_hash, states.hashes.find(parent_hash))
    if parent is None:
        raise CacheError(
            f"block {block} is to follow hash {parent_hash}, which no block has: register a "
            "chain from its first block on. Nothing was changed."
        )
    return parent


def _contradiction(block: int, hash_: int, known: int) -> str:
    if hash_ in (NO_HASH, -1):
        return f"block {block}: {hash_} is no hash; 0 and −1 are never used. Nothing was changed."
    return (
        f"block {block} has hash {known} and cannot get {hash_}: its content is cached or in "
        "use under the first. Nothing was changed."
    )


class RefCountAllocator(CountedBlocks):
    """Hands out, shares, caches and evicts ``CountedBlocks``.

    Attributes:
        observers: Notified of every change once it is made.
        routing: Experts chosen per block, if the model has any: forgotten when a block is handed
            out again.
    """

    def __init__(
        self,
        total_blocks: int,
        policy: ReleasePolicy = "lru",
        routing: RoutingStore | None = None,
    ) -> None:
        """Start with all blocks free.

        Args:
            total_blocks: The dummy included.
            policy: ``lru`` caches a registered block when its last holder is done, ``ref_zero``
                frees it at once.
            routing: Where experts are kept.
        """
        super().__init__(total_blocks, policy)
        self.routing = routing
        self.observers = Observers()

    def acquire(self, count: int) -> Ids:
        """Take ``count`` blocks, evicting if need be; ``OutOfBlocks`` if that is not enough."""
        if not 0 <= count <= self._states.stack.num_free and not self.is_memory_available(count):
            raise out_of("blocks", count, self.num_free, self.num_blocks)
        return self._take(count, NO_BLOCKS)

    def allocate_memory_blocks(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Take ``count`` blocks, evicting if need be.

        Args:
            count: Blocks to take.
            matched: Blocks the same request found cached. They are retained first, so that room
                is not made of them; if there is no memory, nothing is.

        Returns:
            int64[count], each with one reference, or None if there is not enough memory.
        """
        stack = self._states.stack
        if matched.size:
            stack.check_held(np.unique(matched))
        if not 0 <= count <= stack.num_free and (
            not self.is_memory_available(count, matched=matched)
        ):
            return None
        return self._take(count, matched)

    def retain_memory_blocks(self, ids: Ids) -> None:
        """Add a reference to held or cached blocks, one for each time a block is named.

        Raises:
            NotOwner: A block is free or out of range.
        """
        ids = _row(ids)
        self._states.stack.check_held(_count_each(ids)[0])
        self._retain(ids)

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Drop a reference of each block; see ``release_memory_blocks``."""
        if generations is not None and not np.array_equal(self.generation(ids), generations):
            raise not_owner("blocks", ids, "not all are still held by who took them")
        return self.release_memory_blocks(ids)

    def num_freed(self, ids: Ids) -> int:
        """Blocks that ``release`` of held ``ids`` would put in the free list."""
        blocks, counts = _count_each(ids)
        unknown = self._states.hashes.of_block[blocks] == NO_HASH
        return int(np.count_nonzero((self._states.refs[blocks] == counts) & unknown))

    def release_memory_blocks(self, ids: Ids) -> int:
        """Drop a reference of each block, one for each time it is named.

        Ids in the order of their chain. A block without references is cached if it is registered
        (unless the policy is ``ref_zero``), the last of a chain to go first, and free otherwise.
        Returns how many are without references now.

        Raises:
            NotOwner: A block is out of range or has fewer references.
        """
        ids, states = _row(ids), self._states
        done, lost = ids, NO_BLOCKS
        try:
            if states.is_whole(ids):
                states.put_down_chain(ids)
            elif states.claims.are_last(ids):
                lost = states.put_down(ids)
            else:
                blocks, left = self._left(ids)
                done = blocks[left == 0]
                states.refs[blocks] = left
                lost = states.put_down(done) if done.size else lost
        except IndexError:  # beyond the pool
            raise not_owner("blocks", ids, "not all are held") from None
        self.observers.notify("released", ids)
        if lost.size:
            self.observers.notify("evicted", lost)
        return done.size

    def _take(self, count: int, matched: Ids) -> Ids:
        """Take blocks that can be had."""
        states = self._states
        if matched.size:
            self._retain(as_ids(matched))
        if (short := count - states.stack.num_free) > 0:
            self.observers.notify("evicted", states.evict(short))
        taken = states.stack.acquire(count)
        states.refs[taken] = 1
        if self.routing is not None:
            self.routing.drop(taken)
        self.observers.notify("acquired", taken)
        return taken

    def _retain(self, ids: Ids) -> None:
        states = self._states
        blocks, counts = _count_each(ids)
        before = states.refs[blocks]
        states.refs[blocks] = before + counts
        resting = blocks[before == 0]
        if resting.size:
            states.hold_again(resting)
        self.observers.notify("retained", ids)

    def _left(self, ids: Ids) -> tuple[Ids, Ids]:
        """Distinct blocks, and the references each has left; ``NotOwner`` if it has too few."""
        blocks, counts = _count_each(ids)
        self._states.stack.check_held(blocks)
        left = self._states.refs[blocks] - counts
        if (left < 0).any():
            raise not_owner("blocks", ids, "one has fewer references than it is named")
        return blocks, left

    def register_kv_block_hashes(
        self, ids: Ids, hashes: Sequence[int], parent_hashes: Sequence[int]
    ) -> None:
        """Let blocks be found by hashes of their tokens and history.

        Args:
            ids: Referenced blocks.
            hashes: Their hashes: int64, neither 0 nor −1.
            parent_hashes: Hashes of the blocks before them; 0 for first ones.

        Raises:
            NotOwner: A block is not referenced.
            CacheError: A block has another hash, or the block before it has none. Nothing is
                changed.
        """
        states = self._states
        self.check_held(np.unique(ids))
        plan = plan_registration(states, ids, hashes, parent_hashes)
        for block, hash_, parent in plan:
            states.register(block, hash_, parent)
        self.observers.notify("registered", ids)

    def find_kv_blocks(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one: int64[n]; retain them next."""
        return self._states.hashes.prefix(hashes)

    def update_timestamps(self, ids: Ids) -> None:
        """Make cached blocks the newest; held ones become so when they are released."""
        self.generation(ids)
        cached = self._states.cached
        cached.renew(np.array([each for each in ids.tolist() if each in cached], dtype=np.int64))

    def evict_lru_blocks(self, count: int) -> bool:
        """Free the cached blocks used longest ago, children before parents; False if too few."""
        if count > self._states.num_evictable:
            return False
        self.observers.notify("evicted", self._states.evict(count))
        return True

    def reset(self, *, preserve_prefix_cache: bool = False) -> None:
        """Free everything; whoever held blocks holds them no more.

        With ``preserve_prefix_cache`` registered blocks are cached, as if their holders were done
        (under ``ref_zero`` there is no such cache).
        """
        states = self._states
        held = np.flatnonzero(states.refs[:-1])
        if preserve_prefix_cache and states.policy == "lru":
            released = np.repeat(held, states.refs[held])
            states.put_down(held)
            self.observers.notify("released", released)
            return
        out = np.union1d(held, states.cached.blocks())
        states.stack.release(out)
        states.forget()
        self.observers.notify("reset", out)
        if self.routing is not None:
            self.routing.clear()


def _count_each(ids: Ids) -> tuple[Ids, Ids]:
    """Distinct ids in the order they are first named, and how often each is."""
    counts = Counter(ids.tolist())
    if len(counts) == ids.size:
        return ids, np.ones(ids.size, dtype=np.int64)
    return np.array(list(counts)), np.array(list(counts.values()))


def _row(ids: Ids) -> Ids:
    if ids.ndim != 1:
        raise not_owner("blocks", ids, f"shape {ids.shape} is not one row")
    return ids if ids.dtype is INT64 else as_ids(ids)


def make_blocks(num_blocks: int, lanes: int) -> Allocator:
    """An allocator of blocks; the dummy comes on top: all ``num_blocks`` are handed out."""
    return in_lanes(lanes, lambda: RefCountAllocator(num_blocks + 1))
