"""Prompts in the prefix index: what a request finds, where it goes on, what it leaves behind."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.prefix.analysis.engine_cache import Hit
from dsv4kv.prefix.analysis.strategy import Strategy
from dsv4kv.prefix.index import PrefixIndex
from dsv4kv.replay.blocks import BlockLedger
from dsv4kv.replay.checkpoints import CheckpointStore
from dsv4kv.replay.reuse_tally import ReuseTally
from dsv4kv.replay.served import Served


@dataclass(frozen=True)
class Sizes:
    """Sizes of what is reused.

    Attributes:
        shared_tokens: Tokens of a shared block.
        checkpoint_bytes: A checkpoint of window and state.
        beside_bytes: Windows and state that are kept beside a shared block, where all are.
    """

    shared_tokens: int
    checkpoint_bytes: int
    beside_bytes: int


class PromptCache:
    """Reuse of prompts; without an index nothing is ever found.

    Attributes:
        tally: What was found, and why not more.
        checkpoints: Windows and states that are kept.
        restored: How often a request went on behind a window and a state that were kept.
        kept_bytes: Windows and states written so far.
    """

    def __init__(
        self,
        index: PrefixIndex | None,
        strategy: Strategy,
        ledger: BlockLedger,
        checkpoints: CheckpointStore,
        sizes: Sizes,
    ) -> None:
        self.tally = ReuseTally(sizes.shared_tokens)
        self.checkpoints = checkpoints
        self.restored = self.kept_bytes = 0
        self._index, self._strategy, self._ledger = index, strategy, ledger
        self._sizes, self._tokens = sizes, sizes.shared_tokens

    @property
    def at_once(self) -> bool:
        """Whether chunks may be stored together: the policy does not mind."""
        return self._index is None or self._index.blockwise

    @property
    def spare(self) -> int:
        """Free blocks: what is computed has its blocks from the beginning."""
        return self._ledger.free

    def look_up(self, served: Served) -> int:
        """Shared blocks of a request's prompt that are cached; nothing changes."""
        if self._index is None:
            return 0
        return self._index.match_length(served.keys[: self._usable(served)])

    def misses(self, served: Served, found: int) -> bool:
        """Whether there are blocks beyond those found that could have been."""
        return self._index is not None and found < self._usable(served)

    def refuses(self, served: Served) -> str:
        """Nothing but its context can keep a request from being served."""
        return ""

    def fits(self, served: Served, found: int, needed: int, promised: int) -> bool:
        """Whether blocks for a whole prompt can be had besides those found, which must stay."""
        kept = found * self._ledger.per_shared
        return needed - kept + promised <= self._ledger.available - kept

    def begin(self, served: Served) -> int:
        """Pin what is cached of a request's prompt and let it go on behind that.

        Returns the bytes moved to bring window and state back.
        """
        first = served.admitted_s is None
        resumed, cached = 0, list[int]()
        if self._index is not None:
            served.lease = self._index.pin(served.keys[: self._usable(served)])
            served.found = served.committed = served.lease.length
            cached = served.keys[: served.found].tolist()
            resumed = self._resume(served, cached)
        restores = self._strategy.kind != "zero"
        served.position = resumed * self._tokens
        if not restores:
            served.position = self._strategy.resume_tokens(served.position, ())
        served.blocks = served.found * self._ledger.per_shared
        if first:
            marked = self.checkpoints.last_written(cached, resumed)
            self.tally.count(served, Hit(resumed, served.found, marked))
        if not (restores and served.position):
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
            # blocks that another request has stored meanwhile are shared, ours go back
            self._ledger.give(len(new) * self._ledger.per_shared)
            served.committed = whole
            if self._strategy.kind == "full":
                self.kept_bytes += len(new) * self._sizes.beside_bytes
                return len(new) * self._sizes.beside_bytes
        return self._leave_checkpoints(served, whole)

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

    def _resume(self, served: Served, cached: Sequence[int]) -> int:
        """The last block cached behind which a request can go on; plans its checkpoints."""
        if self._strategy.kind in ("full", "zero"):
            return served.found
        store, resumed = self.checkpoints, served.found
        while resumed and cached[resumed - 1] not in store:
            resumed -= 1
        if resumed:
            store.use(cached[resumed - 1])
        periodic = self._strategy.kind == "periodic"
        places = self._strategy.places_to_keep(
            resumed * self._tokens,
            (resumed if periodic else served.found) * self._tokens,
            min(len(served.keys), served.prompt_tokens // self._tokens) * self._tokens,
        )
        served.marks = [place // self._tokens for place in reversed(places)]
        return resumed

    def _leave_checkpoints(self, served: Served, whole: int) -> int:
        copied = 0
        while served.marks and served.marks[-1] <= whole:
            copied += self.checkpoints.write(int(served.keys[served.marks.pop() - 1]))
        self.kept_bytes += copied * self._sizes.checkpoint_bytes
        return 2 * copied * self._sizes.checkpoint_bytes  # read and written
