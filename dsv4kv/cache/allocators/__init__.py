"""Strategies for handing out blocks; all do what ``Allocator`` says, and each something more."""

from dsv4kv.cache.allocators.contract import Allocator
from dsv4kv.choices import ALLOCATORS, choose


def make_allocator(name: str, num_blocks: int, lanes: int = 1) -> Allocator:
    """Make an allocator that can hand out ``num_blocks`` blocks of each lane.

    Raises:
        ConfigError: There is no such strategy.
    """
    made: Allocator = choose(ALLOCATORS, name, "an allocator").load()(num_blocks, lanes)
    return made
