"""A request that resumes behind a prefix holds what it was promised, or nothing."""

import numpy as np
import pytest

from dsv4kv.cache.blocks import BlockEvent, Ids
from dsv4kv.cache.checkpoints import CheckpointPool, resume_request, shared_table
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from tests.cache.blocks import state
from tests.cache.caches import admit, small_plan


class Behind:
    """A prefix of 384 tokens that one request has computed, and another one to go on behind it."""

    def __init__(self, num_blocks: int = 5) -> None:
        plan = small_plan(layers=(2, 3), sharing="model", num_blocks=num_blocks)
        self.manager = KVCacheManager(plan, data=False)
        self.table, self.allocator = shared_table(self.manager)
        self.first, self.slot = admit(self.manager, 2)
        prepare_forward(self.manager, [self.first], [0], [384])
        self.pool = CheckpointPool(self.manager, 2)
        self.checkpoint = self.pool.save(self.first)
        self.blocks: Ids = self.table.blocks[0, self.first, :3].astype(np.int64)

    def cache(self) -> None:
        """The first request ends; its blocks are cached, and nobody holds them."""
        self.allocator.register(self.blocks, [1, 2, 3], [0, 1, 2])
        self.manager.release_request(self.first, self.manager.generation(self.first))

    def resume(self, tokens: int, blocks: Ids | None = None) -> None:
        prefix = self.blocks if blocks is None else blocks
        place = (self.manager, self.slot, tokens, prefix, self.pool, self.checkpoint)
        resume_request(*place, None)

    def refuses(self, error: type[CacheError], tokens: int, blocks: Ids | None = None) -> None:
        before = state(self.allocator)
        with pytest.raises(error):
            self.resume(tokens, blocks)
        assert state(self.allocator) == before
        assert self.table.held[self.slot] == self.manager.tokens[self.slot] == 0


def test_whole_blocks_are_shared_and_the_last_is_its_own() -> None:
    behind = Behind()
    behind.resume(300)
    row = behind.table.blocks[0, behind.slot]
    assert row[:2].tolist() == behind.blocks[:2].tolist()
    assert behind.allocator.refs(row[:3].astype(np.int64)).tolist() == [2, 2, 1]
    assert behind.allocator.refs(behind.blocks).tolist() == [2, 2, 1]


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 131, 132, 255, 256, 259, 260, 384])
def test_as_many_blocks_are_held_as_a_step_would_prepare(tokens: int) -> None:
    """The first tokens of a block complete no entry: there is nothing yet to copy."""
    behind = Behind()
    behind.resume(tokens)
    held = behind.table.held[behind.slot]
    prepare_forward(behind.manager, [behind.slot], [tokens], [tokens])
    assert behind.table.held[behind.slot] == held


def test_a_released_checkpoint_is_refused_before_anything_is_shared() -> None:
    behind = Behind()
    behind.pool.release(behind.checkpoint)
    told: list[BlockEvent] = []
    behind.allocator.observers.append(told.append)
    behind.refuses(NotOwner, 300)
    behind.refuses(NotOwner, 256)
    assert not told


def test_a_free_block_is_no_prefix() -> None:
    behind = Behind()
    free = np.setdiff1d(np.arange(5), behind.blocks)
    behind.refuses(NotOwner, 300, np.array([*behind.blocks[:2], free[0]]))
    behind.refuses(NotOwner, 256, np.array([behind.blocks[0], free[0]]))


def test_too_few_blocks_are_refused() -> None:
    behind = Behind()
    behind.refuses(CacheError, 300, behind.blocks[:2])
    behind.refuses(CacheError, 1024, np.tile(behind.blocks, 4))


def test_a_slot_without_a_request_is_refused() -> None:
    behind = Behind()
    behind.manager.release_request(behind.slot, behind.manager.generation(behind.slot))
    behind.refuses(NotOwner, 300)


def test_its_own_block_is_not_made_of_the_prefix_that_nobody_holds() -> None:
    """Nor of the block that is to be copied, although a full pool has no other."""
    behind = Behind(num_blocks=3)
    behind.cache()
    behind.refuses(OutOfBlocks, 300)
    behind.resume(256)
    assert behind.table.blocks[0, behind.slot, :2].tolist() == behind.blocks[:2].tolist()


def test_a_cached_prefix_stays_while_others_go() -> None:
    behind = Behind(num_blocks=4)
    behind.cache()
    behind.resume(300)
    assert behind.allocator.find([1, 2, 3]).tolist() == behind.blocks.tolist()
    row = behind.table.blocks[0, behind.slot, :3].tolist()
    assert len({*row, *behind.blocks.tolist()}) == 4
