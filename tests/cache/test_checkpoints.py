"""What a checkpoint is, and what a request that goes on behind one shares and copies."""

import numpy as np
import pytest

from dsv4kv.cache.blocks import BlockEvent, Ids
from dsv4kv.cache.checkpoints import CheckpointPool, shared_table
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import at_whole_block
from tests.cache.caches import admit, small_plan, state


def build() -> KVCacheManager:
    return KVCacheManager(small_plan(layers=(0, 2, 3, 4), num_slots=3))


@pytest.mark.parametrize("tokens", [1, 127, 129])
def test_a_checkpoint_inside_a_group_is_refused(tokens: int) -> None:
    manager = build()
    pool = CheckpointPool(manager, 1)
    manager.tokens[0] = tokens
    with pytest.raises(CacheError, match=rf"has {tokens} tokens: .* multiples of 128"):
        pool.save(0)
    assert pool.num_free == 1


def test_memory_is_that_of_windows_and_overlapping_states() -> None:
    manager = build()
    size = sum(at_whole_block(schema).slot_bytes for schema in manager.plan.schemas)
    hca = [s for s in manager.plan.schemas if s.layer.attn is AttentionType.HCA]
    slot_bytes = sum(schema.slot_bytes for schema in manager.plan.schemas)
    assert size == slot_bytes - sum(schema.state_bytes for schema in hca)
    assert sum(mine.nbytes for _, mine in CheckpointPool(manager, 5)._pairs()) == 5 * size


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
        self.pool.resume(self.slot, tokens, prefix, self.checkpoint, None)

    def refuses(self, error: type[CacheError], tokens: int, blocks: Ids | None = None) -> None:
        before = state(self.allocator)
        with pytest.raises(error):
            self.resume(tokens, blocks)
        assert state(self.allocator) == before
        assert self.table.held[self.slot] == self.manager.tokens[self.slot] == 0


def test_a_released_checkpoint_is_refused_before_anything_is_shared() -> None:
    behind = Behind()
    behind.pool.release(behind.checkpoint)
    told: list[BlockEvent] = []
    behind.allocator.observers.append(told.append)
    behind.refuses(NotOwner, 300)
    behind.refuses(NotOwner, 256)
    assert not told


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
