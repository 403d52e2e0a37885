"""What the scheduler asks of memory and of what is reused, whichever rule is replayed."""

from collections.abc import Sequence
from typing import Protocol

from dsv4kv.engines.cache import Hit
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.requests import Served
from dsv4kv.replay.reuse import ReuseTally


class Ledger(Protocol):
    """Blocks: free, held by one request, shared by several, cached."""

    @property
    def total(self) -> int:
        """All blocks."""

    @property
    def private(self) -> int:
        """Blocks that one request holds for itself."""

    @property
    def shared(self) -> int:
        """Cached blocks that requests are using."""

    @property
    def cached(self) -> int:
        """Cached blocks that nobody is using."""

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""

    @property
    def available(self) -> int:
        """Blocks that can be had."""

    @property
    def per_shared(self) -> int:
        """Blocks of what prompts share."""

    @property
    def evicted(self) -> int:
        """What prompts share and was evicted so far."""

    @property
    def freed(self) -> int:
        """Grows whenever more may have become available."""

    def take(self, count: int) -> None:
        """Give a request blocks of its own; raises ``OutOfBlocks`` and changes nothing."""


class Kept(Protocol):
    """Windows and states that are kept apart from blocks."""

    @property
    def written(self) -> int:
        """Written so far."""

    @property
    def evicted(self) -> int:
        """Of which made room for others."""

    @property
    def orphaned(self) -> int:
        """Of which went with the block before them."""

    def __len__(self) -> int: ...


class Prompts(Protocol):
    """What a request finds of its prompt, where it resumes, what it leaves cached.

    Attributes:
        tally: What was found, and why not more.
        restored: How often a request resumed after a window and a state that were kept.
        kept_bytes: Windows and states written so far.
    """

    tally: ReuseTally
    restored: int
    kept_bytes: int

    @property
    def checkpoints(self) -> Kept:
        """Windows and states that are kept."""

    @property
    def at_once(self) -> bool:
        """Whether chunks of a prompt may be stored together where nothing happens in between."""

    @property
    def spare(self) -> int:
        """Blocks that can be taken while prompts are computed, with nothing evicted for either."""

    def refuses(self, served: Served) -> str:
        """Why a request can never be served, other than its context; empty if it can."""

    def look_up(self, served: Served) -> int:
        """Shared blocks of a request's prompt that are cached; nothing changes."""

    def arrive(self, served: Served) -> None:
        """A request waits from now on."""

    def misses(self, served: Served, found: int) -> bool:
        """Whether there are blocks beyond those found that could have been."""

    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        """Whether a prompt can begin.

        Args:
            served: The request.
            found: Shared blocks of it that are cached.
            needed: Blocks of all of it.
            promised: Blocks that are others'.
            step_tokens: Of it that the next step can compute.
        """

    def begin(self, served: Served) -> int:
        """Resume a request after what is cached; returns the bytes moved for it."""

    def commit(self, served: Served, earlier: Sequence[int] = ()) -> int:
        """Store what a request has computed; returns the bytes moved for it.

        Chunks that are stored together ended ``earlier``, but for the last.
        """

    def answered(self, served: Served) -> None:
        """The step that ended a prompt is over, and the request decodes from now on."""

    def decoded(self, decoders: Decoders) -> None:
        """Requests have generated tokens: ``decoders`` says where they are."""

    def end(self, served: Served) -> None:
        """Let go of everything a request holds."""


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


class NothingBelow:
    """What is not on the GPU is nowhere."""

    fetches = False

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """Nothing."""

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """What it has."""
        return hit

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        """Nothing."""

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        """Nothing."""


NOTHING_BELOW = NothingBelow()
