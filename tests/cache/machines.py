"""Allocators, indexes and caches driven at random, beside what is known of their blocks."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import numpy as np
import pytest

from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.cache.checkpoints import CheckpointPool, resume_request
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import NotOwner, OutOfBlocks
from tests.cache.caches import small_plan

CHECK_EVERY = 256
Result = TypeVar("Result")


class Machine:
    """Does operations and counts them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.operations = self.refusals = 0

    def do(self, call: Callable[[], Result]) -> Result:
        """One operation."""
        self.operations += 1
        return call()

    def refuses(self, error: type[Exception], call: Callable[[], object]) -> None:
        self.refusals += 1
        with pytest.raises(error):
            self.do(call)

    def run(self, operations: int) -> None:
        for turn in count():
            if self.operations >= operations:
                break
            self.happen()
            if turn % CHECK_EVERY == 0:
                self.check()
        self.check()

    def happen(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError


class Blocks(Machine):
    """Owners that take, share, name by hashes and give back blocks of one allocator."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        super().__init__(seed)
        self.allocator = make()
        self.size: int = self.allocator.num_blocks
        self.lanes: int = self.allocator.lanes
        self.shares = self.lanes == 1
        self.owners: list[Ids] = []
        self.hashes = count(1)

    def happen(self) -> None:
        allocator, draw = self.allocator, self.draw
        what = draw.random()
        if what < 0.45:
            wanted = draw.randint(0, 6)
            if wanted > allocator.num_free:
                self.refuses(OutOfBlocks, lambda: allocator.acquire(wanted))
            else:
                self.owners.append(self.do(lambda: allocator.acquire(wanted)))
        elif what < 0.85 and self.owners:
            draw.shuffle(self.owners)
            owner = self.owners[-1]
            self.do(lambda: allocator.release(owner))
            self.owners.pop()
            if owner.size and not self.shares:
                self.refuses(NotOwner, lambda: allocator.release(owner))
        elif self.shares and self.owners:
            self.share(draw.choice(self.owners))

    def share(self, owner: Ids) -> None:
        allocator, draw = self.allocator, self.draw
        if draw.random() < 0.5:
            self.do(lambda: allocator.retain(owner))
            self.owners.append(owner)
        elif draw.random() < 0.7:
            new = owner[[not self.hash_of(block) for block in owner.tolist()]]
            names = [next(self.hashes) for _ in new]
            self.do(lambda: allocator.register(new, names, [0, *names][: len(new)]))
        elif resting := np.flatnonzero(allocator._stamp).tolist():
            some = np.array(draw.sample(resting, draw.randint(1, min(3, len(resting)))))
            taken = self.do(lambda: allocator.allocate(2, some))
            if taken is not None:
                self.owners += [some, taken]

    def hash_of(self, block: int) -> int:
        return int(self.allocator._hash[block])

    def check(self) -> None:
        allocator = self.allocator
        none = np.zeros((self.lanes, 0), dtype=np.int64)
        held = np.concatenate([none, *map(np.atleast_2d, self.owners)], 1)
        refs = np.stack([np.bincount(lane, minlength=self.size) for lane in held])
        assert allocator.num_held == np.count_nonzero(refs[0])
        if self.shares:
            assert allocator.refs(np.arange(self.size)).tolist() == refs[0].tolist()
            known = np.array([self.hash_of(block) != 0 for block in range(self.size)])
            assert allocator.num_unused == np.count_nonzero(~known & (refs[0] == 0))
            assert allocator.num_cached == np.count_nonzero(known & (refs[0] == 0))
        else:
            assert refs.max(initial=0) <= 1
            assert allocator.num_free == self.size - allocator.num_held
            allocator.check_held(held if self.lanes > 1 else held[0])


BLOCKS = 14
NOBODYS: Ids = np.zeros(0, dtype=np.int64)


class Cache(Machine):
    """Requests that grow, go back, share a prefix, copy its last block and run out of blocks."""

    def __init__(self, sharing: str, seed: int) -> None:
        super().__init__(seed)
        plan = small_plan(sharing=sharing, num_blocks=BLOCKS, num_slots=4)
        self.manager = KVCacheManager(plan, data=False)
        self.pool = CheckpointPool(self.manager, 2)
        self.tokens: dict[int, int] = {}
        self.aside = NOBODYS
        self.resumes = sharing == "model"

    def happen(self) -> None:
        manager, draw = self.manager, self.draw
        what = draw.random()
        if what < 0.2 and len(self.tokens) < 4:
            slot = self.do(manager.admit_request)
            self.tokens[slot] = 0
            if self.resumes and draw.random() < 0.7:
                self.resume(slot)
        elif what < 0.35 and self.tokens:
            slot = draw.choice(list(self.tokens))
            self.do(lambda: manager.release_request(slot, manager.generation(slot)))
            del self.tokens[slot]
        elif what < 0.45 and self.resumes and len(self.tokens) > 1:
            self.exchange()
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
        self.aside = NOBODYS

    def prepare(self, slots: list[int], before: list[int], after: list[int]) -> None:
        def call() -> None:
            prepare_forward(self.manager, slots, before, after)

        if self.is_short(slots, after):
            self.refuses(OutOfBlocks, call)
            self.check()
            return
        self.do(call)
        self.tokens.update(zip(slots, after, strict=True))

    def is_short(self, slots: list[int], after: list[int]) -> bool:
        """Whether a table lacks blocks, with those that nobody else holds given back."""
        for table in self.manager.tables:
            rows = table.blocks[0]
            held = Counter([*rows[rows >= 0].tolist(), *self.aside.tolist()])
            wanted = table.blocks_for(np.array(after)).tolist()
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
        checkpoint = self.do(lambda: self.pool.save(source))
        try:
            self.do(
                lambda: resume_request(manager, slot, tokens, blocks, self.pool, checkpoint, None)
            )
            self.tokens[slot] = tokens
        except OutOfBlocks:
            self.refusals += 1
        self.check()
        self.do(lambda: self.pool.release(checkpoint))

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
                int(table.blocks_for(manager.tokens[slot])) for slot in range(4)
            ]
            assert table.allocator.num_held == np.count_nonzero(refs)
            assert table.allocator.num_free == BLOCKS - np.count_nonzero(refs)
            assert table.allocator.refs(np.arange(BLOCKS)).tolist() == refs.tolist()


MACHINES: dict[str, Callable[[int], Machine]] = {
    "blocks": lambda seed: Blocks(lambda: BlockPool(40), seed),
    "blocks, 3 lanes": lambda seed: Blocks(lambda: BlockPool(40, 3), seed),
    "blocks, ref_zero": lambda seed: Blocks(lambda: BlockPool(40, policy="ref_zero"), seed),
    "cache, model": lambda seed: Cache("model", seed),
    "cache, type": lambda seed: Cache("type", seed),
    "cache, layer": lambda seed: Cache("layer", seed),
}
