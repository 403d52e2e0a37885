"""Prompts in the prefix index: what a request finds, where it resumes, what it leaves cached."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv4kv.core.contract import NOTHING_BELOW, Below
from dsv4kv.core.hashed import HashedCache
from dsv4kv.core.losses import ReuseTally
from dsv4kv.core.request import Hit
from dsv4kv.core.served import Served
from dsv4kv.errors import OutOfBlocks
from dsv4kv.mrc.strategies import Strategy
from dsv4kv.prefix.index import PrefixIndex
from dsv4kv.traces.runs import list_runs


class CheckpointStore:
    """Checkpoints by the key of the block they follow.

    Attributes:
        written: Checkpoints written so far.
        evicted: Of which made room for others.
        orphaned: Of which went with the block before them.
        below: Called with what is evicted.
    """

    def __init__(self, capacity: int | None) -> None:
        """``capacity`` None is without limit."""
        self._capacity = capacity
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._ever: set[int] = set()
        self.written = self.evicted = self.orphaned = 0
        self.below: Below = NOTHING_BELOW

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def last_written(self, keys: Sequence[int], stop: int) -> int:
        """Leading keys up to the last, beyond ``stop``, that ever had a checkpoint behind it."""
        count, ever = len(keys), self._ever
        while count > stop and keys[count - 1] not in ever:
            count -= 1
        return count

    def last_kept(self, keys: Sequence[int]) -> int:
        """Leading keys up to the last that has one behind it."""
        count, kept = len(keys), self._kept
        while count and keys[count - 1] not in kept:
            count -= 1
        return count

    def use(self, key: int) -> None:
        """Make one the newest."""
        self._kept.move_to_end(key)

    def write(self, key: int) -> bool:
        """Keep a checkpoint; returns whether it had to be copied."""
        if key in self._kept:
            self.use(key)
            return False
        if self._capacity is not None and len(self._kept) >= self._capacity:
            if not self._capacity:
                return False
            gone, _ = self._kept.popitem(last=False)
            self.evicted += 1
            self.below.forget((), (gone,))
        self._kept[key] = None
        self._ever.add(key)
        self.written += 1
        return True

    def drop(self, keys: Iterable[int]) -> list[int]:
        """Forget those after blocks that were evicted: nothing can resume there any more."""
        gone = list(self._kept.keys() & keys)
        for key in gone:
            del self._kept[key]
        self.orphaned += len(gone)
        return gone


_BATCHES = 1024


class BlockLedger:
    """Counts blocks; evicts cached ones when a request needs more than are free.

    What the index holds it holds in *shared blocks* of one or more cache blocks each: the grid on
    which prompts can be compared at all.

    Attributes:
        total: All blocks.
        private: Blocks that one request holds for itself.
        per_shared: Cache blocks of a shared block.
        evicted: Shared blocks evicted so far.
        freed: Grows whenever more may have become available.
    """

    def __init__(
        self,
        total: int,
        per_shared: int,
        index: PrefixIndex | None,
        marks: CheckpointStore,
        below: Below = NOTHING_BELOW,
    ) -> None:
        self.total, self.per_shared = total, per_shared
        self.private = self.evicted = self.freed = 0
        self._index, self._marks, self._below = index, marks, below
        self._batch = max(1, total // per_shared // _BATCHES)

    @property
    def cached(self) -> int:
        """Blocks that only the index holds: they may be evicted."""
        return self._index.evictable * self.per_shared if self._index else 0

    @property
    def shared(self) -> int:
        """Blocks of the index that requests are using."""
        index = self._index
        return (index.held - index.evictable) * self.per_shared if index else 0

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return self.total - self.private - self._held * self.per_shared

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted."""
        return self.total - self.private - self.shared

    def take(self, count: int) -> None:
        """Give a request blocks of its own; raises ``OutOfBlocks`` and changes nothing."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks are needed and {self.available} can be had.")
        while (missing := count - self.free) > 0:
            self._evict(missing)
        self.private += count

    def give(self, count: int) -> None:
        """Take private blocks back, or let the index have them."""
        self.private -= count
        self.freed += 1

    @property
    def _held(self) -> int:
        return self._index.held if self._index else 0

    def _evict(self, missing: int) -> None:
        """Evict a batch, or all that it takes where that comes to the same."""
        index = self._index
        assert index is not None
        batches = -(-missing // (self._batch * self.per_shared)) if index.blockwise else 1
        gone = index.evict(min(batches * self._batch, index.evictable))
        self.evicted += len(gone)
        keys = gone.tolist()
        self._below.forget(keys, self._marks.drop(keys))


@dataclass(frozen=True)
class Sizes:
    """Sizes of what is reused.

    Attributes:
        shared_tokens: Tokens of a shared block.
        checkpoint_bytes: A checkpoint of window and state.
        beside_bytes: Windows and state that are kept with a shared block, where all are.
    """

    shared_tokens: int
    checkpoint_bytes: int
    beside_bytes: int


class PromptCache:
    """Reuse of prompts; without an index nothing is ever found.

    Attributes:
        tally: What was found, and why not more.
        checkpoints: Windows and states that are kept.
        restored: How often a request resumed after a window and a state that were kept.
        kept_bytes: Windows and states written so far.
        stepped: None: blocks of decoded tokens are taken for all requests together.
    """

    def __init__(
        self,
        index: PrefixIndex | None,
        strategy: Strategy,
        ledger: BlockLedger,
        checkpoints: CheckpointStore,
        sizes: Sizes,
        below: Below = NOTHING_BELOW,
    ) -> None:
        self.tally = ReuseTally(list_runs, sizes.shared_tokens)
        self.checkpoints = checkpoints
        self.restored = self.kept_bytes = 0
        self.stepped: HashedCache | None = None
        self._index, self._strategy, self._ledger = index, strategy, ledger
        self._sizes, self._tokens, self._below = sizes, sizes.shared_tokens, below

    def look_up(self, served: Served) -> int:
        """Shared blocks of a request's prompt that are cached; nothing changes."""
        if self._index is None:
            return 0
        return self._index.match_length(served.keys[: self._usable(served)])

    def arrive(self, served: Served) -> None:
        """A request waits from now on."""
        if self._below.fetches and self._index is not None:
            self._below.fetch(served, self.look_up(served), self._usable(served))

    def misses(self, served: Served, found: int) -> bool:
        """Whether there are blocks beyond those found that could have been."""
        return self._index is not None and found < self._usable(served)

    def refuses(self, served: Served) -> str:
        """Nothing but its context can keep a request from being served."""
        return ""

    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        """Whether blocks for a whole prompt can be had in addition to those found, which stay."""
        kept = found * self._ledger.per_shared
        return needed - kept + promised <= self._ledger.available - kept

    def begin(self, served: Served) -> int:
        """Pin what is cached of a request's prompt and resume it after that.

        Returns the bytes moved to bring window and state back.
        """
        first = served.admitted_s is None
        hit, resumed = Hit(0, 0, 0), 0
        if self._index is not None:
            usable = served.keys[: self._usable(served)]
            served.lease = self._index.pin(usable)
            served.found = served.committed = served.lease.length
            cached = served.keys[: served.found].tolist()
            resumed = self._resume(cached)
            marked = self.checkpoints.last_written(cached, resumed) if first else resumed
            hit = self._below.restore(served, Hit(resumed, served.found, marked), len(usable))
            self._plan_checkpoints(served, hit, restored=hit.resumed > resumed)
        restores = self._strategy.kind != "zero"
        served.position = hit.resumed * self._tokens
        if not restores:
            served.position = self._strategy.resume_tokens(served.position, ())
        served.blocks = served.found * self._ledger.per_shared
        if first:
            self.tally.count(served, hit)
        if not (restores and resumed) or hit.resumed > resumed:
            return 0
        self.restored += 1
        return 2 * self._sizes.checkpoint_bytes  # read and written

    def commit(self, served: Served) -> int:
        """Store what a request has computed; returns the bytes moved to keep window and state."""
        if self._index is None or served.lease is None:
            return 0
        whole = min(served.position // self._tokens, len(served.keys))
        if whole > served.committed:
            new = served.keys[served.committed : whole]
            self._index.extend(served.lease, new, new)
            self.tally.store(served, whole)
            # blocks that another request has stored since are shared, ours go back
            self._ledger.give(len(new) * self._ledger.per_shared)
            served.committed = whole
            if self._strategy.kind == "full":
                self._below.offer(served, whole, ())
                self.kept_bytes += len(new) * self._sizes.beside_bytes
                return len(new) * self._sizes.beside_bytes
        return self._leave_checkpoints(served, whole)

    def answered(self, served: Served) -> None:
        """Nothing was only for the prompt."""

    def decoded(self, due: Sequence[Served]) -> None:
        """Their windows are in their slots."""

    def next_event(self, served: Served, due: int) -> int:
        """When it needs a block."""
        return due

    def end(self, served: Served) -> None:
        """Let go of everything a request holds."""
        private = served.blocks - served.committed * self._ledger.per_shared
        if served.lease is not None and self._index is not None:
            self._index.release(served.lease)
        served.lease = None
        self._ledger.give(private)
        served.blocks = served.committed = served.found = 0
        served.marks = []

    def _usable(self, served: Served) -> int:
        """Shared blocks that may be found: the last token of a prompt is always computed."""
        return min(len(served.keys), (served.prompt_tokens - 1) // self._tokens)

    def _resume(self, cached: Sequence[int]) -> int:
        """The last cached block after which a request can resume."""
        if not self._leaves_checkpoints:
            return len(cached)
        resumed = self.checkpoints.last_kept(cached)
        if resumed:
            self.checkpoints.use(cached[resumed - 1])
        return resumed

    @property
    def _leaves_checkpoints(self) -> bool:
        return self._strategy.kind not in ("full", "zero")

    def _plan_checkpoints(self, served: Served, hit: Hit, *, restored: bool) -> None:
        """Where a request will leave checkpoints; also what a tier brings back is kept."""
        if not self._leaves_checkpoints:
            return
        periodic = self._strategy.kind == "periodic"
        places = self._strategy.places_to_keep(
            hit.resumed * self._tokens,
            (hit.resumed if periodic else hit.found) * self._tokens,
            min(len(served.keys), served.prompt_tokens // self._tokens) * self._tokens,
        )
        served.marks = [place // self._tokens for place in reversed(places)]
        if restored:
            served.marks.append(hit.resumed)

    def _leave_checkpoints(self, served: Served, whole: int) -> int:
        copied, places = 0, list[int]()
        while served.marks and served.marks[-1] <= whole:
            places.append(served.marks.pop())
            copied += self.checkpoints.write(int(served.keys[places[-1] - 1]))
        self._below.offer(served, whole, places)
        self.kept_bytes += copied * self._sizes.checkpoint_bytes
        return 2 * copied * self._sizes.checkpoint_bytes  # read and written
