"""What the scheduler asks of memory and of what is reused, whichever rule is replayed."""

from collections.abc import Sequence
from typing import Protocol

from dsv4kv.core.hashed import HashedCache
from dsv4kv.core.request import Hit
from dsv4kv.core.served import Served


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


class Source(Protocol):
    """Where a scheduler gets its requests from."""

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, where so many are in flight."""


class Prompts(Protocol):
    """What a request finds of its prompt, where it resumes, what it leaves cached.

    Attributes:
        restored: How often a request resumed after a window and a state that were kept.
        kept_bytes: Windows and states written so far.
    """

    restored: int
    kept_bytes: int

    @property
    def stepped(self) -> HashedCache | None:
        """The cache, where decoding requests take blocks from it one after the other."""

    @property
    def checkpoints(self) -> "Kept":
        """Windows and states that are kept."""

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

    def commit(self, served: Served) -> int:
        """Store what a request has computed; returns the bytes moved for it."""

    def answered(self, served: Served) -> None:
        """The step that ended a prompt is over, and the request decodes from now on."""

    def decoded(self, due: Sequence[Served]) -> None:
        """Requests that need or free something have taken a step."""

    def next_event(self, served: Served, due: int) -> int:
        """Tokens at which a decoding request next needs or frees something; blocks at ``due``."""

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
