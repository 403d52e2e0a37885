"""What caches are asked about, and what they answer."""

from typing import NamedTuple, Protocol


class Hit(NamedTuple):
    """What a request found, in blocks of context.

    Attributes:
        resumed: Where it resumes.
        found: What is cached of its context alone.
        marked: The last of these whose window and state were ever cached.
    """

    resumed: int
    found: int
    marked: int


class Generating(Protocol):
    """A request that decodes.

    Attributes:
        number: Which request.
        begun: Tokens that it began to decode with.
        position: Tokens that it has.
        blocks: Blocks of context that it holds.
        due: Tokens at which its next step needs or frees a block.
        windows: Pages of windows that its generated tokens hold, where they are counted.
    """

    number: int
    begun: int
    position: int
    blocks: int
    due: int
    windows: int
