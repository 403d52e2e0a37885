"""What every allocator does, whatever its strategy."""

from typing import Protocol

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.errors import NotOwner, OutOfBlocks


class Allocator(Protocol):
    """Hands out ids and takes them back from their holder only; a refusal changes nothing.

    Ids are int64[n], or int64[lanes, n] where layers have tables of their own; they are the
    caller's to keep and to write over. Any other type of whole numbers is taken back, too.
    """

    num_blocks: int
    lanes: int

    @property
    def num_free(self) -> int:
        """Ids of each lane that ``acquire`` can hand out."""

    @property
    def num_held(self) -> int:
        """Ids of each lane that are out."""

    def acquire(self, count: int) -> Ids:
        """Take ``count`` ids; ``OutOfBlocks`` if fewer are free."""

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Give ids back; ``NotOwner`` if one is not held, or by a newer generation.

        Returns how many of each lane nobody holds now.
        """

    def num_freed(self, ids: Ids) -> int:
        """Ids of each lane that ``release`` of held ``ids`` would free, at least."""

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every id is held and none is named twice."""

    def generation(self, ids: Ids) -> Ids:
        """Generations of ids: grow whenever an id is handed out."""


def not_owner(unit: str, ids: Ids, reason: str) -> NotOwner:
    """Name the first ids and why they are refused."""
    shown = ", ".join(str(i) for i in ids.ravel()[:8])
    more = ", …" if ids.size > 8 else ""
    return NotOwner(f"{unit} {shown}{more}: {reason}. Nothing was changed.")


def out_of(unit: str, count: int, free: int, total: int) -> OutOfBlocks:
    """Say how many are needed and how many there are."""
    return OutOfBlocks(
        f"{count} {unit} are needed and {free} of {total} are free: raise the number of {unit}, "
        "or lower concurrency or context. Nothing was changed."
    )
