"""What an engine's prefix cache answers while requests run side by side."""

from typing import NamedTuple, Protocol


class Hit(NamedTuple):
    """What a request found, in blocks of context.

    Attributes:
        resumed: Where it goes on.
        found: What is cached of its context alone.
        marked: The last of these whose window and state were ever there.
    """

    resumed: int
    found: int
    marked: int


class EngineCache(Protocol):
    """Blocks of one pool, what is cached in them, and who uses it.

    Requests are known by their places in the trace. Blocks of decoded tokens belong to nobody:
    the trace has no ids for them.

    Attributes:
        total: All blocks.
        per_shared: Blocks of what prompts share: 1.
        freed: Grows whenever more may have become available.
    """

    total: int
    per_shared: int
    freed: int

    @property
    def evicted(self) -> int:
        """Cached blocks evicted so far."""

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""

    @property
    def private(self) -> int:
        """Blocks that one request holds for itself."""

    @property
    def cached(self) -> int:
        """Cached blocks that nobody uses."""

    @property
    def shared(self) -> int:
        """Cached blocks that requests use."""

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted, less those promised."""

    @property
    def windows(self) -> int:
        """Pages of a pool of their own that windows take; 0 where there is none."""

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""

    def peek(self, request: int, tokens: int) -> int:
        """Blocks of context that a prompt of so many tokens would find; nothing changes."""

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` blocks are others'."""

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""

    def compute(self, request: int, position: int) -> int:
        """Cache what is computed up to ``position``; returns the blocks that others can find."""

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: keep only what these need."""

    def end(self, request: int, decoded_blocks: int) -> int:
        """Give everything back, with so many blocks that decoding took.

        Returns:
            Blocks of its prompt that it cached: an engine may cache the last of them now.
        """

    def take(self, blocks: int) -> None:
        """Take blocks for decoded tokens; raises ``OutOfBlocks``."""
