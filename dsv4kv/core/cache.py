"""Blocks that requests hold and share, whichever rule decides what is cached in them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from dsv4kv.core.served import Hit, Served
from dsv4kv.errors import OutOfBlocks

Evicted = Callable[[Sequence[int], Sequence[int]], None]
"""Called with the numbers of pages that are evicted, rising, and of those whose windows are."""


class Cache:
    """Blocks of one pool: free, held by one request, shared by several, cached."""

    # whether requests take the blocks of every step by ``lacks`` and ``reserve``; else a prompt
    # has all of its blocks when it begins, and ``get_new_blocks`` gives more
    reserves = False

    def __init__(self, total: int, per_shared: int = 1) -> None:
        self.uncached = total  # free blocks that hold nothing; they are allocated first
        self.total = total
        self.per_shared = per_shared  # blocks of what prompts share
        self.cached = 0  # cached blocks that no request uses
        self.shared = 0  # cached blocks that requests use
        self.written = 0  # windows and states that were copied to be kept, so far
        self.dropped = 0  # written ones that were evicted for others
        self.evicted = 0  # shared blocks evicted so far
        self.freed = 0  # grows whenever blocks come free
        # called with blocks to be evicted, before it is, where tiers may want it
        self.on_evicted: Evicted | None = None

    @property
    def private(self) -> int:
        """Blocks that one request holds for itself."""
        return self.total - self.uncached - self.cached - self.shared

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted, less those promised."""
        return self.uncached + self.cached

    @property
    def windows(self) -> int:
        """Windows and states, or pages of windows, that are kept apart from blocks."""
        return 0

    def state(self) -> int:
        """A number that changes whenever a prompt may fit that did not."""
        return self.freed

    def refuses(self, tokens: int) -> str:
        """Why a request of this length can never run; empty if it can."""
        return ""

    def get_new_blocks(self, blocks: int) -> None:
        """Give a request blocks; raises ``OutOfBlocks`` and changes nothing."""
        if blocks > self.uncached and blocks > self.available:
            raise OutOfBlocks(f"{blocks:,} blocks are needed and {self.available:,} can be had.")
        self.alloc(blocks)

    def alloc(self, blocks: int) -> None:
        """Take blocks that can be had: uncached ones first."""
        if blocks > self.uncached:
            self.evict(blocks - self.uncached)
        self.uncached -= blocks

    @abstractmethod
    def evict(self, blocks: int) -> None:
        """Evict at least ``blocks`` cached blocks, which exist."""

    def lacks(self, request: int, end: int) -> int:
        """Blocks that a request lacks for tokens up to ``end``; frees those behind windows."""
        return 0

    def reserve(self, request: int, position: int) -> int:
        """Free what is behind windows, reserve a step; the next event's tokens, -1 for too few."""
        return 1 << 62  # it has what it needs

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: keep only what these need."""

    def decoded(self, due: Sequence[Served]) -> None:
        """Requests that need or free something have taken a step."""

    def next_event(self, request: Served, due: int) -> int:
        """Tokens at which one next needs or frees something; a block of context at ``due``."""
        return due


class EngineCache(Cache):
    """An engine's cache; requests are places in the trace, and decoded blocks never found."""

    def __init__(self, total: int, block_tokens: int, chunk_tokens: int) -> None:
        super().__init__(total)
        self.chunk_tokens = chunk_tokens  # most tokens of a prompt in a step
        self.block_tokens = block_tokens
        self.replayed_tokens = 0  # tokens at a hit's end that are computed again

    def refuses_alone(self, request: int, tokens: int) -> bool:
        """Whether a prompt has no room even where no other request runs."""
        return self.refuses(tokens) != ""

    def admitted_blocks(self, tokens: int, resumed: int) -> int:
        """Blocks that a prompt behind a hit has still to be left, once it has begun."""
        return 0

    def chunk_ends(self, begin: int, tokens: int) -> list[int]:
        """Where the chunks of a prompt end that begins to be computed there."""
        return [*range(begin + self.chunk_tokens, tokens, self.chunk_tokens), tokens]

    def computed_from(self, hit: Hit) -> int:
        """Tokens of a prompt that a hit saves."""
        again = self.replayed_tokens + hit.short_tokens
        return max(0, hit.resumed * self.block_tokens - again)

    @abstractmethod
    def find(self, request: int, tokens: int) -> Hit:
        """What a prompt of this length would hit; nothing changes."""

    @abstractmethod
    def fits(self, request: int, tokens: int, promised: int, step_tokens: int) -> bool:
        """Whether a prompt can begin: ``promised`` blocks are others', ``step_tokens`` next."""

    @abstractmethod
    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt."""

    @abstractmethod
    def compute(self, request: int, position: int) -> int:
        """Cache what is computed up to ``position``; returns the blocks that others can find."""

    @abstractmethod
    def end(self, request: int, decoded_blocks: int = 0, position: int = 0) -> int:
        """Free a request with ``position`` tokens, ``decoded_blocks`` of them behind its prompt's.

        Returns the blocks of its prompt that it cached: an engine may cache the last of them now.
        """

    def load(self, request: int, begin: int, end: int) -> None:
        """A tier brings back blocks ``begin`` to ``end`` of a prompt: take what they need."""

    @abstractmethod
    def loaded(self, request: int, begin: int, end: int, position: int) -> None:
        """They are there, and the prompt is computed up to ``position``: cache them."""

    def serve(self, request: int, tokens: int) -> Hit | None:
        """Compute a prompt alone and free it; returns what it hit, None where it cannot run."""
        if self.refuses_alone(request, tokens):
            return None
        hit = self.begin(request, tokens)
        for end in self.chunk_ends(self.computed_from(hit), tokens):
            self.compute(request, end)
        self.end(request)
        return hit
