"""How allocators say no."""

from dsv4kv.cache.allocator import Ids
from dsv4kv.errors import NotOwner, OutOfBlocks


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
