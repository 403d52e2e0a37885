"""Strategies for handing out blocks; all do what ``Allocator`` says, and each something more."""

from collections.abc import Callable

from dsv4kv.cache.allocator import BlockAllocator
from dsv4kv.cache.allocators.bitmask import SlotAllocator
from dsv4kv.cache.allocators.contract import Allocator
from dsv4kv.cache.allocators.lanes import InLanes
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.errors import ConfigError


def _stack(num_blocks: int, lanes: int) -> Allocator:
    return BlockAllocator(num_blocks, lanes)


def _bitmask(num_blocks: int, lanes: int) -> Allocator:
    return _in_lanes(lanes, lambda: SlotAllocator(num_blocks, unit="blocks"))


def _refcount(num_blocks: int, lanes: int) -> Allocator:
    # The dummy comes on top: whatever the strategy, num_blocks can be handed out.
    return _in_lanes(lanes, lambda: RefCountAllocator(num_blocks + 1))


def _in_lanes(lanes: int, make: Callable[[], Allocator]) -> Allocator:
    return make() if lanes == 1 else InLanes(lanes, make)


ALLOCATORS: dict[str, Callable[[int, int], Allocator]] = {
    "stack": _stack,
    "bitmask": _bitmask,
    "refcount": _refcount,
}


def make_allocator(name: str, num_blocks: int, lanes: int = 1) -> Allocator:
    """Make an allocator that can hand out ``num_blocks`` blocks of each lane.

    Raises:
        ConfigError: There is no such strategy.
    """
    if name not in ALLOCATORS:
        raise ConfigError(f"{name!r} is no allocator: choose one of {', '.join(ALLOCATORS)}.")
    return ALLOCATORS[name](num_blocks, lanes)
