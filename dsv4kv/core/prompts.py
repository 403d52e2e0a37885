"""What requests find of their prompts, where they resume, and what they leave cached."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsv4kv.core.cache import Cache, EngineCache
from dsv4kv.core.outcome import ReuseTally
from dsv4kv.core.served import Hit, Served
from dsv4kv.core.tree import PrefixTree


def kept_places(prompt_tokens: int, period_tokens: int, end: tuple[int, int] | None) -> set[int]:
    """Tokens of a prompt behind which windows and states are kept, none of them 0.

    ``end`` is ``(grain, before)``: one ``before`` tokens before its end, floored to ``grain``.
    """
    places = set[int]()
    if period_tokens:
        places.update(range(period_tokens, prompt_tokens + 1, period_tokens))
    if end is not None:
        grain, before = end
        places.add((prompt_tokens - before) // grain * grain)
    return places - {0}


@dataclass(frozen=True)
class Strategy:
    """One way to keep windows and states, which a request needs to go on behind cached blocks.

    Source: arXiv:2606.19348 §3.5.2 (full, periodic, zero); the bounded replay of DeepSeek-V4.1;
    ends of prompts and where prompts part are policies of this toolkit.
    """

    name: str  # as users write it
    # ``full`` keeps every window entry; ``periodic`` a checkpoint at every multiple of
    # ``period_tokens``; ``zero`` none; ``ends`` one at the end of every prompt; ``ends+junctions``
    # also one where an earlier prompt ran out of checkpoints
    kind: str
    window_tokens: int = 128  # window tokens of a checkpoint
    period_tokens: int = 0  # for ``periodic``
    replay_tokens: int = 0  # for ``zero``: tokens before the end of a hit that are computed again

    @property
    def keeps_marks(self) -> bool:
        """Whether it depends on earlier requests where a hit can resume."""
        return self.kind in ("ends", "ends+junctions")

    def places_to_keep(
        self, resumed_tokens: int, found_tokens: int, prompt_tokens: int
    ) -> list[int]:
        """Where a prompt leaves checkpoints, rising; it found ``found_tokens`` in whole blocks."""
        if self.kind == "periodic":
            places = kept_places(prompt_tokens, self.period_tokens, None)
            return sorted([place for place in places if place > found_tokens])
        if not self.keeps_marks:
            return []
        places = kept_places(prompt_tokens, 0, (1, 0))
        if self.kind == "ends+junctions" and resumed_tokens < found_tokens:
            places.add(found_tokens)
        return sorted([place for place in places if place > resumed_tokens])


class Below(Protocol):
    """Tiers below the GPU, as a cache of prompts on it sees them; blocks are shared blocks."""

    @property
    def fetches(self) -> bool:
        """Whether ``fetch`` is to be called for requests that wait."""

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """A request has come; the GPU holds ``found`` of ``usable`` blocks."""

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """A request begins: what it has with what comes back, at ``served.ready_s``."""

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        """Leading blocks of a prompt are cached, and windows and states behind some of them."""

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        """Shared blocks were evicted, and windows and states behind some."""


Places = Callable[[Served, int, int], Sequence[int]]
"""Blocks behind which a request has left tails, of those cached between two counts of them."""


class Journal:
    """Shared blocks stored and evicted, for routers; vLLM's rules report no evictions."""

    def __init__(self) -> None:
        self._announced: dict[int, int] = {}  # blocks, by number of the request
        self.stored: list[int] = []
        self.evicted: list[int] = []

    def store(self, served: Served, blocks: int) -> None:
        before = self._announced.get(served.number, 0)
        if blocks > before:
            self.stored.extend(served.keys[before:blocks])
            self._announced[served.number] = blocks

    def end(self, number: int) -> None:
        self._announced.pop(number, None)

    def take(self) -> tuple[list[int], list[int]]:
        taken, self.stored, self.evicted = (self.stored, self.evicted), [], []
        return taken


class Prompts:
    """See the module."""

    def __init__(self, cache: Cache, tally: ReuseTally, below: Below | None) -> None:
        self.below = below  # tiers below the GPU; None where there are none
        self.cache, self.tally = cache, tally
        self.journal: Journal | None = None  # is kept for routers; None where none asks
        if below is not None:
            cache.on_evicted = self.forget
        self.restored = 0  # how often a request resumed after a window and a state that were kept
        self.kept_bytes = 0  # windows and states written so far
        self._tokens = tally.shared_tokens

    def keep_journal(self) -> Journal:
        self.journal = journal = Journal()
        self.cache.on_evicted = self.forget
        return journal

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        if self.journal is not None:
            self.journal.evicted.extend(blocks)
        if self.below is not None:
            self.below.forget(blocks, tails)

    def _offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        if self.journal is not None:
            self.journal.store(served, blocks)
        if self.below is not None:
            self.below.offer(served, blocks, tails)

    @abstractmethod
    def look_up(self, served: Served) -> int:
        """Shared blocks of a request's prompt that are cached; nothing changes."""

    def usable(self, served: Served) -> int:
        """Shared blocks of a prompt that a hit may cover."""
        covered = max(0, served.prompt_tokens - self.tally.uncovered_tokens)
        return min(len(served.keys), covered // self._tokens)

    def arrive(self, served: Served) -> None:
        if self.below is not None and self.below.fetches:
            self.below.fetch(served, self.look_up(served), self.usable(served))

    @abstractmethod
    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        """Whether a prompt can begin, ``found`` of its ``needed`` blocks being cached."""

    @abstractmethod
    def begin(self, served: Served, needed: int) -> int:
        """Resume a request that needs ``needed`` blocks; returns the bytes moved for it."""

    @abstractmethod
    def commit(self, served: Served) -> int:
        """Store what a request has computed; returns the bytes moved for it."""

    @abstractmethod
    def end(self, served: Served) -> None:
        """Free everything that a request holds."""


class EnginePrompts(Prompts):
    """By an engine's rule: windows stay where they were computed, so nothing is moved."""

    def __init__(
        self,
        cache: EngineCache,
        tally: ReuseTally,
        below: Below | None = None,
        places: Places | None = None,
        *,
        windows: bool,
    ) -> None:
        """``windows``: whether a hit needs them.  Tails at ``places`` are offered to tiers."""
        super().__init__(cache, tally, below)
        self._cache, self._windows, self._places = cache, windows, places
        self._back: dict[int, tuple[int, int]] = {}  # blocks that a tier brings back

    def look_up(self, served: Served) -> int:
        return self._cache.find(served.number, served.prompt_tokens).found

    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        return self._cache.fits(served.number, served.prompt_tokens, promised, step_tokens)

    def begin(self, served: Served, needed: int) -> int:
        cache, own = self._cache, self._cache.begin(served.number, served.prompt_tokens)
        hit = own
        if self.below is not None:
            hit = self.below.restore(served, own, self.usable(served))
        served.found, served.committed = hit.found, own.resumed
        if hit.resumed > own.resumed:
            self._back[served.number] = own.resumed, hit.resumed
            cache.load(served.number, own.resumed, hit.resumed)
        served.position = cache.computed_from(hit)
        served.blocks = self._blocks(served.prompt_tokens)
        if served.admitted_s is None:
            self.tally.count(served, hit)
        self.restored += self._windows and own.resumed > 0
        return 0

    def commit(self, served: Served) -> int:
        before = served.committed
        if self._back and served.number in self._back:
            begin, before = self._back.pop(served.number)
            self._cache.loaded(served.number, begin, before, served.position)
        served.committed = self._cache.compute(served.number, served.position)
        self._cached(served, before)
        return 0

    def end(self, served: Served) -> None:
        decoded, before = served.blocks - self._blocks(served.prompt_tokens), served.committed
        served.committed = self._cache.end(served.number, decoded, served.position)
        self._cached(served, before)
        self._back.pop(served.number, None)
        served.blocks = served.committed = served.found = 0

    def _cached(self, served: Served, before: int) -> None:
        count = served.committed
        self.tally.store(served, count)
        tails = self._places(served, before, count) if self._places is not None else ()
        self._offer(served, count, tails)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._tokens)


_BATCHES = 1024


class IdealCache(Cache):
    """Shared blocks that a policy evicts, and checkpoints behind some, which go with them."""

    def __init__(
        self, total: int, per_shared: int, tree: PrefixTree | None, checkpoints: int | None
    ) -> None:
        """``checkpoints``: their number at most; None is without limit."""
        super().__init__(total, per_shared)
        self.tree = tree  # shared blocks that are cached; None where nothing is reused
        self._batch = max(1, total // per_shared // _BATCHES)
        self._capacity = checkpoints
        self._kept: OrderedDict[int, None] = OrderedDict()  # keys of blocks before checkpoints
        self._ever: set[int] = set()

    @property
    def windows(self) -> int:
        return len(self._kept)

    def settle(self) -> None:
        """The tree has changed: private blocks have not."""
        if self.tree is not None:
            private = self.private
            self.shared = self.tree.pinned * self.per_shared
            self.cached = self.tree.evictable * self.per_shared
            self.uncached = self.total - private - self.shared - self.cached

    def give(self, blocks: int) -> None:
        """Free private blocks, or let the tree have them, which has changed."""
        self.uncached += blocks
        self.settle()
        self.freed += 1

    def evict(self, blocks: int) -> None:
        """Evict in whole batches."""
        tree, wanted = self.tree, self.uncached + blocks
        assert tree is not None
        while self.uncached < wanted:
            missing = wanted - self.uncached
            batches = -(-missing // (self._batch * self.per_shared))
            gone = tree.evict(min(batches * self._batch, tree.evictable))
            self.settle()
            self.evicted += len(gone)
            tails = [key for key in gone if key in self._kept]
            for key in tails:
                del self._kept[key]
            if self.on_evicted is not None:
                self.on_evicted(gone, tails)

    def last_kept(self, keys: list[int], count: int) -> int:
        """Of ``count`` leading keys those up to the last that has a checkpoint behind it."""
        kept = self._kept
        while count and keys[count - 1] not in kept:
            count -= 1
        return count

    def last_written(self, keys: list[int], count: int, stop: int) -> int:
        """The same, beyond ``stop``, of checkpoints that were ever written."""
        ever = self._ever
        while count > stop and keys[count - 1] not in ever:
            count -= 1
        return count

    def use(self, key: int) -> None:
        self._kept.move_to_end(key)

    def write(self, key: int) -> bool:
        """Keep a checkpoint; returns whether it had to be copied."""
        kept = self._kept
        if key in kept:
            kept.move_to_end(key)
            return False
        if self._capacity is not None and len(kept) >= self._capacity:
            if not self._capacity:
                return False
            gone, _ = kept.popitem(last=False)
            self.dropped += 1
            if self.on_evicted is not None:
                self.on_evicted((), (gone,))
        kept[key] = None
        self._ever.add(key)
        self.written += 1
        return True


class IdealPrompts(Prompts):
    """By no engine's rule: any policy of eviction, any strategy for windows and states."""

    def __init__(
        self,
        cache: IdealCache,
        tally: ReuseTally,
        below: Below | None,
        strategy: Strategy,
        checkpoint_bytes: int,
        beside_bytes: int,
    ) -> None:
        """``beside_bytes``: windows and state that are kept with a shared block, where all are."""
        super().__init__(cache, tally, below)
        self._cache, self._tree, self._strategy = cache, cache.tree, strategy
        self._checkpoint_bytes, self._beside_bytes = checkpoint_bytes, beside_bytes
        self._leaves_checkpoints = strategy.kind not in ("full", "zero")

    def usable(self, served: Served) -> int:
        return super().usable(served) if self._tree is not None else 0

    def look_up(self, served: Served) -> int:
        if self._tree is None:
            return 0
        return self._tree.match_length(served.keys[: self.usable(served)])

    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        kept = found * self._cache.per_shared
        return needed - kept + promised <= self._cache.available - kept

    def begin(self, served: Served, needed: int) -> int:
        first, cache, strategy = served.admitted_s is None, self._cache, self._strategy
        hit, resumed = Hit(0, 0, 0), 0
        if self._tree is not None:
            keys, usable = served.keys, self.usable(served)
            lease = self._tree.pin(keys[:usable])
            cache.settle()
            served.lease, found = lease, lease.length
            served.found = served.committed = resumed = found
            if self._leaves_checkpoints:
                resumed = cache.last_kept(keys, found)
                if resumed:
                    cache.use(keys[resumed - 1])
            marked = cache.last_written(keys, found, resumed) if first else resumed
            hit = Hit(resumed, found, marked)
            if self.below is not None:
                hit = self.below.restore(served, hit, usable)
            if self._leaves_checkpoints:
                self._plan_checkpoints(served, hit, hit.resumed > resumed)
        served.position = hit.resumed * self._tokens
        if strategy.kind == "zero":
            served.position = max(0, served.position - strategy.replay_tokens)
        if first:
            self.tally.count(served, hit)
        served.blocks = max(needed, served.found * cache.per_shared)
        cache.get_new_blocks(served.blocks - served.found * cache.per_shared)
        if strategy.kind == "zero" or not resumed or hit.resumed > resumed:
            return 0
        self.restored += 1
        return 2 * self._checkpoint_bytes  # read and written

    def commit(self, served: Served) -> int:
        tree, lease = self._tree, served.lease
        if tree is None or lease is None:
            return 0
        whole = min(served.position // self._tokens, len(served.keys))
        if whole > served.committed:
            new = served.keys[served.committed : whole]
            tree.extend(lease, new, [])
            self.tally.store(served, whole)
            # blocks that another request has stored since are shared, ours are freed
            self._cache.give(len(new) * self._cache.per_shared)
            served.committed = whole
            if self._strategy.kind == "full":
                self._offer(served, whole, ())
                self.kept_bytes += len(new) * self._beside_bytes
                return len(new) * self._beside_bytes
        return self._leave_checkpoints(served, whole)

    def end(self, served: Served) -> None:
        private = served.blocks - served.committed * self._cache.per_shared
        if served.lease is not None and self._tree is not None:
            self._tree.release(served.lease)
        served.lease = None
        self._cache.give(private)
        served.blocks = served.committed = served.found = 0
        served.marks = []

    def _plan_checkpoints(self, served: Served, hit: Hit, restored: bool) -> None:
        size, periodic = self._tokens, self._strategy.kind == "periodic"
        places = self._strategy.places_to_keep(
            hit.resumed * size,
            (hit.resumed if periodic else hit.found) * size,
            min(len(served.keys), served.prompt_tokens // size) * size,
        )
        served.marks = [place // size for place in reversed(places)]
        if restored:
            served.marks.append(hit.resumed)

    def _leave_checkpoints(self, served: Served, whole: int) -> int:
        copied, places, marks = 0, list[int](), served.marks
        while marks and marks[-1] <= whole:
            places.append(marks.pop())
            copied += self._cache.write(served.keys[places[-1] - 1])
        self._offer(served, whole, places)
        self.kept_bytes += copied * self._checkpoint_bytes
        return 2 * copied * self._checkpoint_bytes  # read and written
