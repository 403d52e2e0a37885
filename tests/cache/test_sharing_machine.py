"""Shared prefixes, copies of their last block, rollback and too little memory: all or nothing.

``make endure`` runs a million operations.
"""

import os
from collections import Counter
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.blocks import NO_BLOCKS
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import OutOfBlocks
from tests.cache.caches import small_plan
from tests.examples import examples

OPERATIONS = int(os.environ.get("DSV4KV_ENDURANCE_OPERATIONS", "1500"))
BLOCKS = 14


class Cache:
    """Requests that grow, go back, share a prefix, copy its last block and run out of blocks."""

    def __init__(self, sharing: str, seed: int = 0) -> None:
        self.draw = Random(seed)
        plan = small_plan(sharing=sharing, num_blocks=BLOCKS, num_slots=4)
        self.manager = KVCacheManager(plan, data=False)
        self.pool = CheckpointPool(self.manager, 2)
        self.tokens: dict[int, int] = {}
        self.aside = NO_BLOCKS
        self.resumes = sharing == "model"

    def happen(self) -> None:
        manager, draw = self.manager, self.draw
        what = draw.random()
        if what < 0.2 and len(self.tokens) < 4:
            slot = manager.admit_request()
            self.tokens[slot] = 0
            if self.resumes and draw.random() < 0.7:
                self.resume(slot)
        elif what < 0.35 and self.tokens:
            slot = draw.choice(list(self.tokens))
            manager.release_request(slot, manager.generation(slot))
            del self.tokens[slot]
        elif what < 0.45 and self.resumes and len(self.tokens) > 1:
            self.exchange()
        elif what < 0.5 and self.tokens:
            self.all_go_back_and_come_again()
        elif self.tokens:
            slots = draw.sample(list(self.tokens), draw.randint(1, len(self.tokens)))
            before = [self.tokens[slot] for slot in slots]
            after = [self.some_tokens(at) for at in before]
            self.prepare(slots, before, after)

    def exchange(self) -> None:
        """One gives all back; another takes as much and all that is free, as if none was shared.

        What is too much for a row somebody else holds meanwhile.
        """
        slots = self.draw.sample(list(self.tokens), 2)
        table = self.manager.tables[0]
        before = [self.tokens[slot] for slot in slots]
        blocks = min(int(table.held[slots].sum()) + table.allocator.num_free, 1000 // 128)
        spare = int(table.held[slots].sum()) + table.allocator.num_free - blocks
        self.aside = table.allocator.acquire(min(spare, table.allocator.num_free))
        self.prepare(slots, before, [0, 128 * blocks])
        table.allocator.release(self.aside)
        self.aside = NO_BLOCKS

    def all_go_back_and_come_again(self) -> None:
        """What requests shared is each one's own afterwards, if there is room."""
        slots, tokens = list(self.tokens), list(self.tokens.values())
        none = [0] * len(slots)
        for before, after in ((tokens, tokens), (tokens, none), (none, tokens)):
            self.prepare(slots, before, after)

    def prepare(self, slots: list[int], before: list[int], after: list[int]) -> None:
        if self.is_short(slots, after):
            with pytest.raises(OutOfBlocks):
                prepare_forward(self.manager, slots, before, after)
            self.check()
            return
        prepare_forward(self.manager, slots, before, after)
        self.tokens.update(zip(slots, after, strict=True))

    def is_short(self, slots: list[int], after: list[int]) -> bool:
        """Whether a table lacks blocks, with those that nobody else holds given back."""
        for table in self.manager.tables:
            rows = table.blocks[0]
            held = Counter([*rows[rows >= 0].tolist(), *self.aside.tolist()])
            wanted = table.group.blocks_for(np.array(after)).tolist()
            for slot, size in zip(slots, wanted, strict=True):
                held.subtract(rows[slot, size : table.held[slot]].tolist())
            grown = sum(max(n - table.held[s], 0) for s, n in zip(slots, wanted, strict=True))
            if grown > BLOCKS - len(+held):
                return True
        return False

    def some_tokens(self, before: int) -> int:
        grown, back = before + self.draw.choice([1, 6, 100, 300]), max(before - 130, 0)
        return min(self.draw.choice([grown, grown, back, before - before % 7]), 1000)

    def resume(self, slot: int) -> None:
        """Behind some of what another request holds."""
        manager = self.manager
        source = self.draw.choice(list(self.tokens))
        held = int(manager.tables[0].held[source])
        tokens = self.draw.randint(0, held * 128)
        blocks = manager.tables[0].blocks[0, source, :held].astype(np.int64)
        if source == slot or manager.tokens[source] % 128:
            return
        checkpoint = self.pool.save(source)
        with suppress(OutOfBlocks):
            self.pool.resume(slot, tokens, blocks, checkpoint, None)
            self.tokens[slot] = tokens
        self.check()
        self.pool.release(checkpoint)

    def check(self) -> None:
        manager = self.manager
        assert manager.num_free_slots == 4 - len(self.tokens)
        assert manager.tokens.tolist() == [self.tokens.get(slot, 0) for slot in range(4)]
        for table in manager.tables:
            rows = [table.blocks[:, slot, : table.held[slot]] for slot in range(4)]
            held = np.concatenate(rows, 1)
            refs = np.bincount(np.append(held[0], self.aside), minlength=BLOCKS)
            assert (table.blocks >= 0).sum() == held.size
            assert table.held.tolist() == [
                int(table.group.blocks_for(manager.tokens[slot])) for slot in range(4)
            ]
            assert table.allocator.num_held == np.count_nonzero(refs)
            assert table.allocator.num_free == BLOCKS - np.count_nonzero(refs)
            assert table.allocator.refs(np.arange(BLOCKS)).tolist() == refs.tolist()


SHARINGS = ["model", "type", "layer"]


@examples(100)
@given(st.sampled_from(SHARINGS), st.integers(0, 2**20), st.integers(1, 200))
def test_every_step_is_refused_exactly_where_a_plain_count_of_holders_lacks_blocks(
    sharing: str, seed: int, events: int
) -> None:
    """Whatever is refused leaves every block with the requests that had it."""
    cache = Cache(sharing, seed)
    for _ in range(events):
        cache.happen()
        cache.check()


@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_block_is_lost_in_many_operations(sharing: str) -> None:
    cache = Cache(sharing, 7)
    for turn in range(OPERATIONS):
        cache.happen()
        if turn % 256 == 0:
            cache.check()
    cache.check()
