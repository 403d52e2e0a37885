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
from dsv4kv.cache.slots import NO_SLOT, SlotAllocator
from dsv4kv.errors import NotOwner, OutOfBlocks
from dsv4kv.prefix.index import Digests, Keys, Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.radix import PrefixCacheManager
from dsv4kv.prefix.store import PrefixStore
from tests.cache.caches import small_plan
from tests.prefix.indexes import make_index
from tests.prefix.trees import check_tree

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
        elif resting := [n for n, b in allocator._blocks.items() if not b.refs]:
            some = np.array(draw.sample(resting, draw.randint(1, min(3, len(resting)))))
            taken = self.do(lambda: allocator.allocate(2, some))
            if taken is not None:
                self.owners += [some, taken]

    def hash_of(self, block: int) -> int:
        record = self.allocator._blocks.get(block)
        return record.hash if record else 0

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


BLOCK = 4
PROMPTS = 12
BLOCKS = 14
NOBODYS: Ids = np.zeros(0, dtype=np.int64)


class Serving(Machine):
    """Prompts over an index and an allocator: pin, make room, take, store, release."""

    def __init__(self, kind: str, policy: str, seed: int) -> None:
        super().__init__(seed)
        self.kind, self.size = kind, 24
        self.allocator = BlockPool(self.size)
        made = make_index(kind, BLOCK, make_policy(policy, self.size * BLOCK))
        assert isinstance(made, PrefixStore)
        self.index = made
        self.cached: Counter[int] = Counter()
        self.running: list[tuple[Lease, Ids]] = []
        tokens = [self.draw.choices((0, 1), k=40) for _ in range(PROMPTS)]
        self.prompts = [keys for prompt in tokens for keys in self.some_keys(prompt)]

    def some_keys(self, prompt: list[int]) -> list[Keys]:
        """Of a prompt and of parts of it."""
        parts = [prompt[: self.draw.randint(1, 40)] for _ in range(8)]
        if self.kind == "radix":
            return [np.array(part, dtype=np.int32) for part in parts]
        found: list[Keys] = []
        for part in parts:
            ends = range(BLOCK, len(part) + 1, BLOCK)
            names = [bytes(part[:end]).rjust(16, b"\x07")[-16:] for end in ends]
            chained = [b"".join(names[: n + 1])[-12:] + bytes([n] * 4) for n in range(len(names))]
            guards = [hash(bytes(part[:end])) for end in ends]
            found.append(Digests(b"".join(chained), np.array(guards, dtype=np.int64)))
        return found

    def happen(self) -> None:
        what = self.draw.random()
        if what < 0.55 and len(self.running) < 5:
            self.start(self.draw.choice(self.prompts))
        elif what < 0.9 and self.running:
            lease, row = self.running.pop(self.draw.randrange(len(self.running)))
            self.do(lambda: self.allocator.release(row))
            self.do(lambda: self.index.release(lease))
        elif evictable := self.index.evictable:
            self.evict(self.draw.randint(0, min(3, evictable)))

    def start(self, keys: Keys) -> None:
        index, allocator = self.index, self.allocator
        lease = self.do(lambda: index.pin(keys))
        per_block = BLOCK if self.kind == "radix" else 1
        whole = lease.length // per_block
        needed = -(-len(keys) // per_block) - whole
        while (short := needed - allocator.num_free) > 0:
            if not index.evictable:
                self.refuses(OutOfBlocks, lambda: allocator.acquire(needed))
                self.do(lambda: index.release(lease))
                return
            self.evict(min(short, index.evictable))
        fresh = self.do(lambda: allocator.acquire(needed))
        more = keys.after(lease.length) if isinstance(keys, Digests) else keys[lease.length :]
        taken = self.do(lambda: index.extend(lease, more, fresh)).taken
        self.cached.update(taken.tolist())
        self.do(lambda: allocator.retain(taken))
        self.running.append((lease, fresh))

    def evict(self, blocks: int) -> None:
        gone = self.do(lambda: self.index.evict(blocks))
        assert gone.size == blocks
        self.cached.subtract(gone.tolist())
        self.do(lambda: self.allocator.release(gone))

    def check(self) -> None:
        """Between two operations of one request its blocks may be on their way: not told here."""
        check_tree(self.index, list(self.index._leases))
        assert max(self.cached.values(), default=0) <= 1
        assert min(self.cached.values(), default=0) >= 0

    def run(self, operations: int) -> None:
        super().run(operations)
        for lease, row in self.running:
            self.allocator.release(row)
            self.index.release(lease)
        self.evict(self.index.evictable)
        assert not +self.cached
        assert self.allocator.num_held == self.index.held == 0


class Slots(Machine):
    """Rows that are found, copied and handed out again: what is copied is the prompt's own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.slots = SlotAllocator(6)
        self.rows = PrefixCacheManager(60, None, self.copy, self.slots.version)
        self.content: list[tuple[int, ...]] = [()] * 6
        self.running: list[tuple[int, Lease]] = []
        self.wanted: tuple[int, ...] = ()

    def copy(self, source: int, target: int, tokens: int) -> None:
        assert self.content[source][:tokens] == self.wanted[:tokens]

    def happen(self) -> None:
        draw, rows = self.draw, self.rows
        if draw.random() < 0.6 or not self.running:
            tokens = tuple(draw.choices((0, 1), k=draw.randint(1, 16)))
            row = np.array(tokens, dtype=np.int32)
            slot = self.do(self.slots.alloc)
            if slot == NO_SLOT:
                return
            self.wanted, self.content[slot] = tokens, ()
            self.do(lambda: rows.copy_kv(row, slot))
            lease = self.do(lambda: rows.pin(row))
            self.content[slot] = tokens
            version = self.slots.version(slot)
            self.do(lambda: rows.extend_row(lease, row[lease.length :], slot, version))
            self.running.append((slot, lease))
        else:
            slot, lease = self.running.pop(draw.randrange(len(self.running)))
            self.do(lambda: rows.release(lease))
            self.do(lambda: self.slots.free(slot))

    def check(self) -> None:
        check_tree(self.rows, list(self.rows._leases))
        assert self.rows.held <= 60


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
    "radix": lambda seed: Serving("radix", "s3fifo", seed),
    "block_hash": lambda seed: Serving("block_hash", "lru", seed),
    "rows": Slots,
    "cache, model": lambda seed: Cache("model", seed),
    "cache, type": lambda seed: Cache("type", seed),
    "cache, layer": lambda seed: Cache("layer", seed),
}
