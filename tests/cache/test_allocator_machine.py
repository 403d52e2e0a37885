"""In any order of calls an allocator behaves as sets of free and held ids would."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.allocator import BlockAllocator, Ids
from dsv4kv.errors import NotOwner, OutOfBlocks
from tests.cache.caches import allocator_snapshot


class AllocatorMachine(RuleBasedStateMachine):
    """Takes and gives back at random, lanes in step, beside one set per lane.

    ``held`` lists what is out, one tuple of ids (a block of each lane) for each block taken.
    """

    @initialize(blocks=st.integers(1, 12), lanes=st.sampled_from([1, 3]))
    def build(self, blocks: int, lanes: int) -> None:
        self.allocator = BlockAllocator(blocks, lanes)
        self.blocks, self.lanes = blocks, lanes
        self.held: list[tuple[int, ...]] = []
        self.generations: dict[tuple[int, ...], int] = {}
        self.given_back: list[tuple[tuple[int, ...], int]] = []

    def shaped(self, columns: list[tuple[int, ...]]) -> Ids:
        ids = np.array(columns, dtype=np.int64).reshape(-1, self.lanes).T
        return np.ascontiguousarray(ids[0] if self.lanes == 1 else ids)

    def refuses(self, ids: Ids, generations: Ids | None = None) -> None:
        before = allocator_snapshot(self.allocator)
        with pytest.raises(NotOwner):
            self.allocator.release(ids, generations)
        assert allocator_snapshot(self.allocator) == before

    @rule(count=st.integers(0, 14))
    def acquire(self, count: int) -> None:
        if count > self.blocks - len(self.held):
            before = allocator_snapshot(self.allocator)
            with pytest.raises(OutOfBlocks):
                self.allocator.acquire(count)
            assert allocator_snapshot(self.allocator) == before
            return
        ids = self.allocator.acquire(count)
        newest = max(self.generations.values(), default=0)
        columns = [tuple(column) for column in np.atleast_2d(ids).T.tolist()]
        generations = np.atleast_2d(self.allocator.generation(ids))[0].tolist()
        assert all(generation > newest for generation in generations)
        self.generations |= dict(zip(columns, generations, strict=True))
        self.held += columns

    @precondition(lambda self: self.held)
    @rule(data=st.data(), as_owner=st.booleans())
    def release(self, data: st.DataObject, as_owner: bool) -> None:
        some = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        ids = self.shaped(some)
        self.allocator.release(ids, self.allocator.generation(ids) if as_owner else None)
        self.held = [column for column in self.held if column not in some]
        self.given_back += [(column, self.generations[column]) for column in some]

    @rule(data=st.data())
    def release_with_an_id_that_is_not_held(self, data: st.DataObject) -> None:
        lane = data.draw(st.integers(0, self.lanes - 1))
        held = {column[lane] for column in self.held}
        bad = data.draw(
            st.integers(-3 * self.blocks, 3 * self.blocks).filter(lambda block: block not in held)
        )
        columns = [list(column) for column in self.held] or [[0] * self.lanes]
        columns[data.draw(st.integers(0, len(columns) - 1))][lane] = bad
        self.refuses(self.shaped([tuple(column) for column in columns]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_one_named_twice(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        self.refuses(self.shaped([*some, some[0]]))

    @precondition(lambda self: self.given_back)
    @rule(data=st.data())
    def release_as_an_old_holder(self, data: st.DataObject) -> None:
        column, generation = data.draw(st.sampled_from(self.given_back))
        ids = self.shaped([column])
        self.refuses(ids, np.full_like(ids, generation))

    @invariant()
    def every_id_is_free_or_held_once(self) -> None:
        allocator = self.allocator
        assert allocator.num_held == len(self.held)
        assert allocator.num_free == self.blocks - len(self.held)
        free = np.atleast_2d(allocator._free)[:, : allocator.num_free].tolist()
        for lane in range(self.lanes):
            held = [column[lane] for column in self.held]
            assert sorted(free[lane] + held) == list(range(self.blocks))


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=30)
