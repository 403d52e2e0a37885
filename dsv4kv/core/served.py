"""A request on its way through a replay."""

from bisect import insort
from collections.abc import Callable, MutableSequence, Sequence
from typing import NamedTuple

from dsv4kv.core.tree import Lease

NEVER = float("inf")


class Hit(NamedTuple):
    """What a request found, in blocks of context."""

    resumed: int  # where it resumes
    found: int  # what is cached of its context alone
    marked: int  # the last of these whose window and state were ever cached
    short_tokens: int = 0  # tokens before ``resumed`` at which it does


_NO_MARKS: list[int] = []


class Served:
    """One request; lengths in tokens.

    Attributes:
        number: Place in the trace.
        arrival_s: When it comes.
        ids: What the trace calls the blocks of its prompt; the last may be partial.
        id_tokens: Tokens that an id stands for.
        generated: Tokens generated so far, as of its last prompt end or pause.
        position: Tokens in the cache, as of its last chunk.
        prompt_tokens: Tokens to compute before it decodes: its prompt, and after an eviction
            what it had generated.
        blocks: Blocks it holds, shared ones included.
        lease: What it holds of the prefix tree.
        found: Shared blocks that were cached when it was admitted.
        committed: Shared blocks of it that the index holds.
        saved: Tokens of its prompt that it did not have to compute when it was first admitted.
        stored: Shared blocks of it that are known to have been cached once.
        marks: Shared blocks after which it will leave a checkpoint, the next one last.
        blocked_by: The request that computes what it needs next.
        deferred: Whether it ever had to wait for another one's prefix.
        reached: Most tokens it ever had in the cache.
        offered: Objects of it that were offered to the tiers below the GPU.
        sent_tokens: Tokens of its prompt that another server has computed and sends.
        ready_s: When all is there that a tier brings back for it.
        admitted_s: When it was first admitted.
        first_token_s: When its prompt ended.
        ended_s: When it ended or was rejected.
        rank: Which of several replicas in lockstep serves it.
        place: How many had been admitted before it was, the last time.
        left: Tokens still to be decoded, while it decodes.
        begun: Tokens with which it began to decode.
        due: Tokens at which its next step needs or frees something, while it decodes.
        verified: Steps in which it decoded since it began to.
        drafts: Whether these verify drafts.
        windows: Pages of windows that its decoded tokens hold, where they are counted.
        evictions: How often it was preempted and recomputed.
    """

    __slots__ = (
        "_keys", "admitted_s", "arrival_s", "begun", "blocked_by", "blocks", "committed",
        "deferred", "drafts", "due", "ended_s", "evictions", "find_keys", "finished_s",
        "first_token_s", "found", "generated", "id_tokens", "ids", "input_tokens",
        "lease", "left", "marks", "number", "offered", "output_tokens", "pauses", "place",
        "position", "prompt_tokens", "rank", "reached", "ready_s", "saved", "sent_tokens",
        "stored", "verified", "windows",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        find_keys: "Callable[[Served], list[int]]",
        ids: Sequence[int],
        id_tokens: int,
    ) -> None:
        self.number = number
        self.arrival_s = arrival_s
        self.input_tokens = self.prompt_tokens = input_tokens
        self.output_tokens = output_tokens
        self.find_keys = find_keys
        self.ids = ids
        self.id_tokens = id_tokens
        self.generated = self.position = self.blocks = self.found = self.committed = 0
        self.saved = self.stored = self.reached = self.offered = self.sent_tokens = 0
        self.lease: Lease | None = None
        self.marks = _NO_MARKS
        self.blocked_by: Served | None = None
        self.deferred = False
        self.ready_s = self.ended_s = 0.0
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.rank = self.place = self.pauses = self.evictions = 0
        self.left = self.begun = self.due = self.verified = self.windows = 0
        self.drafts = False
        self._keys: list[int] | None = None

    @property
    def keys(self) -> list[int]:
        """The whole shared blocks of its prompt.  Many wait: found when first asked for."""
        if self._keys is None:
            self._keys = self.find_keys(self)
        return self._keys

    def forget_keys(self) -> None:
        """It has ended: find its keys again if they are asked for."""
        self._keys = None

    @property
    def total_tokens(self) -> int:
        """Tokens in the cache at its end: the last token is only returned."""
        return self.input_tokens + max(0, self.output_tokens - 1)


def insert_by_age(queue: MutableSequence[Served], served: Served) -> None:
    """Put a request in its place where the oldest is first."""
    insort(queue, served, key=lambda each: (each.arrival_s, each.number))
