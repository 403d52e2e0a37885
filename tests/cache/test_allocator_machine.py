"""In any order of calls an allocator hands out and takes back as stacks of ids would."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.allocators.stack import BlockAllocator, Ids
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from tests.cache.caches import allocator_snapshot
from tests.examples import examples

Rows = list[list[int]]
"""Ids of every lane; as many of each."""


class AllocatorMachine(RuleBasedStateMachine):
    """Takes and gives back at random beside a stack of free ids and a dict of held ones per lane.

    Lanes go in step, but which block of one goes with which of another is left to chance.
    """

    @initialize(blocks=st.integers(1, 12), lanes=st.sampled_from([1, 3]))
    def build(self, blocks: int, lanes: int) -> None:
        self.allocator = BlockAllocator(blocks, lanes)
        self.blocks, self.lanes = blocks, lanes
        self.free = [list(range(blocks))[::-1] for _ in range(lanes)]
        self.held: list[dict[int, int]] = [{} for _ in range(lanes)]  # generations by id
        self.newest = 0
        self.given_back: list[tuple[int, int, int]] = []  # (lane, id, generation)

    @property
    def num_held(self) -> int:
        return len(self.held[0])

    def shaped(self, rows: Rows) -> Ids:
        return np.array(rows[0] if self.lanes == 1 else rows, dtype=np.int64)

    def draw_held(self, data: st.DataObject, least: int = 0) -> Rows:
        """As many held blocks of every lane."""
        count = data.draw(st.integers(least, self.num_held))
        return [data.draw(st.permutations(sorted(held)))[:count] for held in self.held]

    def refuses(
        self, ids: Ids, generations: Ids | None = None, error: type[CacheError] = NotOwner
    ) -> None:
        before = allocator_snapshot(self.allocator)
        with pytest.raises(error):
            self.allocator.release(ids, generations)
        if generations is None:
            with pytest.raises(error):
                self.allocator.check_held(ids)
        assert allocator_snapshot(self.allocator) == before

    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.blocks - self.num_held))
        ids = self.allocator.acquire(count)
        rows, start = np.atleast_2d(ids).tolist(), self.blocks - self.num_held - count
        assert rows == [free[start:] for free in self.free]
        generations = np.atleast_2d(self.allocator.generation(ids))
        assert not count or generations.min() > self.newest
        self.newest = max(self.newest, *generations.ravel().tolist(), 0)
        for lane, row in enumerate(rows):
            del self.free[lane][start:]
            self.held[lane] |= dict(zip(row, generations[lane].tolist(), strict=True))

    @rule(beyond=st.integers(1, 3))
    def acquire_too_many(self, beyond: int) -> None:
        before = allocator_snapshot(self.allocator)
        for count in (self.blocks - self.num_held + beyond, -beyond):
            with pytest.raises(OutOfBlocks):
                self.allocator.acquire(count)
        assert allocator_snapshot(self.allocator) == before

    @precondition(lambda self: self.num_held)
    @rule(data=st.data(), how=st.sampled_from(["trusted", "as owner", "checked first"]))
    def release(self, data: st.DataObject, how: str) -> None:
        rows = self.draw_held(data)
        ids = self.shaped(rows)
        if how == "checked first":
            before = allocator_snapshot(self.allocator)
            self.allocator.check_held(ids)
            assert allocator_snapshot(self.allocator) == before
        generations = self.allocator.generation(ids) if how == "as owner" else None
        self.allocator.release(ids, generations)
        self.forget(rows)

    @precondition(lambda self: self.lanes == 1 and self.num_held)
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held[0])))
        self.allocator.release_one(block)
        self.forget([[block]])

    def forget(self, rows: Rows) -> None:
        for lane, row in enumerate(rows):
            self.given_back += [(lane, block, self.held[lane].pop(block)) for block in row]
            self.free[lane] += row

    # What must be refused.

    @precondition(lambda self: self.num_held)
    @rule(data=st.data())
    def release_with_an_id_that_is_not_held(self, data: st.DataObject) -> None:
        rows, lane = self.draw_held(data, least=1), data.draw(st.integers(0, self.lanes - 1))
        known = set(self.held[lane])
        anything = st.integers(-3 * self.blocks, 3 * self.blocks)
        bad = data.draw(anything.filter(lambda block: block not in known))
        rows[lane][data.draw(st.integers(0, len(rows[lane]) - 1))] = bad
        self.refuses(self.shaped(rows))

    @precondition(lambda self: self.num_held)
    @rule(data=st.data())
    def release_one_named_twice(self, data: st.DataObject) -> None:
        rows, lane = self.draw_held(data, least=1), data.draw(st.integers(0, self.lanes - 1))
        again = data.draw(st.sampled_from(rows[lane]))
        for number, row in enumerate(rows):  # in one lane only, if the others have one more
            more = sorted(set(self.held[number]) - set(row))
            row.append(again if number == lane or not more else more[0])
        self.refuses(self.shaped(rows))

    @precondition(lambda self: self.given_back)
    @rule(data=st.data())
    def release_as_an_old_holder(self, data: st.DataObject) -> None:
        """Also where a newer one holds the block, and where all others are right."""
        lane, block, generation = data.draw(st.sampled_from(self.given_back))
        rows = self.draw_held(data)
        if block not in rows[lane]:
            rows = [[block]] * self.lanes
        ids = self.shaped(rows)
        generations = np.atleast_2d(self.allocator.generation(ids))
        generations[lane, rows[lane].index(block)] = generation
        self.refuses(ids, generations.reshape(ids.shape))

    @invariant()
    def every_id_is_free_or_held_once(self) -> None:
        allocator = self.allocator
        assert allocator.num_held == self.num_held
        assert allocator.num_free == self.blocks - self.num_held
        for free, held in zip(self.free, self.held, strict=True):
            assert sorted([*free, *held]) == list(range(self.blocks))
        if self.num_held:
            ids = self.shaped([list(held) for held in self.held])
            generations = [list(held.values()) for held in self.held]
            assert np.atleast_2d(allocator.generation(ids)).tolist() == generations


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = examples(150, stateful_step_count=30)
