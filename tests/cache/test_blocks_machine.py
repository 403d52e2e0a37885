"""In any order of calls free, held, cached and evicted blocks are those of a plain model."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.blocks import BlockPool
from dsv4kv.errors import CacheError, NotOwner
from tests.cache.caches import state
from tests.examples import examples

HASHES = list(range(1, 32))


def parent_of(hash_: int) -> int:
    """Hashes form a tree: 1, its children 2 and 3, theirs 4, 5 and 6, 7, and so on."""
    return hash_ // 2


class BlockPoolMachine(RuleBasedStateMachine):
    """Owners hold lists of blocks, any of them, in any order; blocks are registered at will."""

    @initialize(blocks=st.integers(1, 16), policy=st.sampled_from(["lru", "ref_zero"]))
    def build(self, blocks: int, policy: str) -> None:
        self.pool = BlockPool(blocks, policy=policy)  # type: ignore[arg-type]
        self.blocks, self.policy = blocks, policy
        self.owners: list[list[int]] = []
        self.hashes: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.now = 0

    def use(self, blocks: list[int]) -> None:
        """Cached blocks become the newest, the last to go first."""
        for block in reversed(blocks):
            if block in self.cached:
                self.now += 1
                self.used[block] = self.now

    def next_to_go(self, count: int) -> set[int]:
        """Again and again the block used longest ago that no other follows."""
        left, gone = set(self.hashes), set[int]()
        for _ in range(count):
            above = {self.parents.get(block) for block in left}
            leaf = min(left & self.cached - above, key=lambda block: self.used[block])
            left.remove(leaf)
            gone.add(leaf)
        return gone

    def hash_of(self, block: int) -> int:
        return int(self.pool._hash[block])

    @property
    def refs(self) -> Counter[int]:
        return Counter(block for owner in self.owners for block in owner)

    @property
    def cached(self) -> set[int]:
        return {block for block in self.hashes if not self.refs[block]}

    def kept(self) -> set[int]:
        """Cached blocks with a referenced one somewhere after them."""
        found: set[int] = set()
        for block in self.refs:
            above = self.parents.get(block)
            while above is not None:
                found.add(above)
                above = self.parents.get(above)
        return found & self.cached

    def forget(self, blocks: set[int]) -> None:
        for block in blocks:
            self.hashes.pop(block, None)
            self.parents.pop(block, None)
        for block, parent in list(self.parents.items()):
            if parent in blocks:
                del self.parents[block]

    @rule(count=st.integers(0, 4), data=st.data())
    def allocate(self, count: int, data: st.DataObject) -> None:
        matched = data.draw(st.lists(st.sampled_from(sorted(self.hashes) or [0]), max_size=2))
        matched = matched if self.hashes else []
        unused, before = self.pool.num_unused, state(self.pool)
        ids = self.pool.allocate(count, np.array(matched, dtype=np.int64))
        if ids is None:
            assert state(self.pool) == before
            if not matched:
                assert count > unused + len(self.cached - self.kept())
            return
        gone = set(ids.tolist()) & set(self.hashes)
        assert not gone & set(matched)
        self.owners += [[block] for block in matched]
        assert not gone & self.kept()
        expected = self.next_to_go(max(count - unused, 0))
        evicted = {b for b in self.hashes if not self.hash_of(b)}
        assert evicted == expected
        self.forget(evicted)
        self.owners.append(ids.tolist())
        for block in data.draw(st.sampled_from([[], ids.tolist()])):
            self.name(block, data)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(self.owners))
        some = data.draw(st.lists(st.sampled_from(source), max_size=6)) if source else []
        self.pool.retain(np.array(some, dtype=np.int64))
        self.owners.append(some)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.cached)), min_size=1, max_size=4))
        self.pool.retain(np.array(some))
        self.owners.append(some)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.pool.release(np.array(owner, dtype=np.int64))
        self.use(list(dict.fromkeys(owner)))
        if self.policy == "ref_zero":
            self.forget({block for block in owner if not self.refs[block]})

    @precondition(lambda self: bool(set(self.refs) - set(self.hashes)))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        self.name(data.draw(st.sampled_from(sorted(set(self.refs) - set(self.hashes)))), data)

    def name(self, block: int, data: st.DataObject) -> None:
        """Let a block follow any that has a hash, or none."""
        known = {0, *self.hashes.values()}
        hash_ = data.draw(st.sampled_from([h for h in HASHES if parent_of(h) in known]))
        parent = parent_of(hash_)
        above = self.pool.find([parent]).tolist()
        self.pool.register(np.array([block]), [hash_], [parent])
        self.hashes[block] = hash_
        if above:
            self.parents[block] = above[0]

    @precondition(lambda self: self.cached)
    @rule(count=st.integers(0, 9), data=st.data())
    def evict(self, count: int, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            count = min(count, len(self.cached))
        before, kept = state(self.pool), self.kept()
        enough = count <= len(self.cached - kept)
        expected = self.next_to_go(count) if enough else set()
        if not self.pool.evict(count):
            assert not enough
            assert state(self.pool) == before
            return
        gone = {b for b in self.hashes if not self.hash_of(b)}
        assert gone == expected
        self.forget(gone)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.integers(0, self.blocks - 1), unique=True))
        self.pool.touch(np.array(some, dtype=np.int64))
        self.use(some)

    @rule(data=st.data(), how=st.sampled_from(["release", "retain", "check", "register"]))
    def what_is_not_held_is_refused(self, data: st.DataObject, how: str) -> None:
        known = set(self.refs) | (self.cached if how == "retain" else set())
        anything = st.integers(-3 * self.blocks, 3 * self.blocks)
        bad = data.draw(anything.filter(lambda block: block not in known))
        more = data.draw(st.lists(st.sampled_from(sorted(known) or [bad]), max_size=3))
        ids, before = np.array([*more, bad]), state(self.pool)
        calls: dict[str, Callable[[], object]] = {
            "release": lambda: self.pool.release(ids),
            "retain": lambda: self.pool.retain(ids),
            "check": lambda: self.pool.check_held(ids),
            "register": lambda: self.pool.register(ids, [99] * len(ids), [0] * len(ids)),
        }
        with pytest.raises(CacheError):
            calls[how]()
        assert state(self.pool) == before

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def more_releases_than_holders_are_refused(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.refs) or [0]))
        ids, before = np.full(self.refs[block] + 1, block), state(self.pool)
        with pytest.raises(NotOwner):
            self.pool.release(ids)
        assert state(self.pool) == before

    @rule(preserve=st.booleans())
    def reset(self, preserve: bool) -> None:
        held = sorted(set(self.refs) & set(self.hashes))
        self.pool.reset(preserve_prefix_cache=preserve)
        self.owners.clear()
        if preserve and self.policy == "lru":
            self.use(held)
        else:
            self.forget(set(self.hashes))

    @invariant()
    def reference_counts_equal_owners(self) -> None:
        refs = self.pool.refs(np.arange(self.blocks)).tolist()
        assert refs == [self.refs[block] for block in range(self.blocks)]

    @invariant()
    def free_held_and_cached_are_all(self) -> None:
        pool = self.pool
        assert pool.num_held == len(self.refs)
        assert pool.num_cached == len(self.cached)
        assert pool.num_unused + pool.num_held + pool.num_cached == self.blocks
        assert pool.num_evictable == len(self.cached - self.kept())

    @invariant()
    def every_hash_finds_a_block_that_has_it(self) -> None:
        for hash_ in HASHES:
            holders = {block for block, known in self.hashes.items() if known == hash_}
            found = self.pool.find([hash_]).tolist()
            assert bool(found) == bool(holders)
            assert set(found) <= holders


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = examples(150, stateful_step_count=50)
