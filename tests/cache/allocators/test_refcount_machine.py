"""In any order of calls free, held and cached blocks are those of a plain model."""

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from tests.cache.allocators.blocks import state

HASHES = list(range(1, 9))


def parent_of(hash_: int) -> int:
    """Hashes form a tree: 1, its children 2 and 3, theirs 4, 5 and 6, 7, and so on."""
    return hash_ // 2


class RefCountMachine(RuleBasedStateMachine):
    """Owners hold lists of blocks, any of them, in any order; blocks are registered at will."""

    @initialize(blocks=st.integers(1, 9), policy=st.sampled_from(["lru", "ref_zero"]))
    def build(self, blocks: int, policy: str) -> None:
        self.allocator = RefCountAllocator(blocks + 1, policy)  # type: ignore[arg-type]
        self.blocks, self.policy = blocks, policy
        self.owners: list[list[int]] = []
        self.hashes: dict[int, int] = {}
        self.parents: dict[int, int] = {}

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
        unused, before = self.allocator.num_unused, state(self.allocator)
        ids = self.allocator.allocate_memory_blocks(count, np.array(matched, dtype=np.int64))
        if ids is None:
            if not matched:
                assert state(self.allocator) == before
                assert count > unused + len(self.cached - self.kept())
            return
        gone = set(ids.tolist()) & set(self.hashes)
        assert not gone & set(matched)
        self.owners += [[block] for block in matched]
        assert not gone & self.kept()
        evicted = {b for b in self.hashes if not self.allocator._states.hashes.of_block[b]}
        assert len(evicted) == max(count - unused, 0)
        assert not any(self.parents.get(block) in evicted for block in set(self.hashes) - evicted)
        self.forget(evicted)
        self.owners.append(ids.tolist())

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(self.owners))
        some = data.draw(st.lists(st.sampled_from(source), max_size=6)) if source else []
        self.allocator.retain_memory_blocks(np.array(some, dtype=np.int64))
        self.owners.append(some)

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.cached)), min_size=1, max_size=4))
        self.allocator.retain_memory_blocks(np.array(some))
        self.owners.append(some)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.allocator.release_memory_blocks(np.array(owner, dtype=np.int64))
        if self.policy == "ref_zero":
            self.forget({block for block in owner if not self.refs[block]})

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), hash_=st.sampled_from(HASHES))
    def register(self, data: st.DataObject, hash_: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.refs)))
        parent = parent_of(hash_)
        known = self.allocator.find_kv_blocks([parent])
        if block in self.hashes or (parent and not known.size) or block in known:
            return
        self.allocator.register_kv_block_hashes(np.array([block]), [hash_], [parent])
        self.hashes[block] = hash_
        if parent:
            self.parents[block] = int(known[0])

    @rule(count=st.integers(0, 9))
    def evict(self, count: int) -> None:
        before, kept = state(self.allocator), self.kept()
        if not self.allocator.evict_lru_blocks(count):
            assert count > len(self.cached - kept)
            assert state(self.allocator) == before
            return
        gone = {b for b in self.hashes if not self.allocator._states.hashes.of_block[b]}
        assert len(gone) == count
        assert gone <= self.cached - kept
        assert not any(self.parents.get(block) in gone for block in set(self.hashes) - gone)
        self.forget(gone)

    @rule()
    def touch(self) -> None:
        self.allocator.update_timestamps(np.arange(self.blocks))

    @invariant()
    def reference_counts_equal_owners(self) -> None:
        refs = self.allocator.refs(np.arange(self.blocks)).tolist()
        assert refs == [self.refs[block] for block in range(self.blocks)]

    @invariant()
    def free_held_and_cached_are_all(self) -> None:
        allocator = self.allocator
        assert allocator.num_held == len(self.refs)
        assert allocator.num_cached == len(self.cached)
        assert allocator.num_unused + allocator.num_held + allocator.num_cached == self.blocks
        assert allocator.get_evictable_block_count() == len(self.cached - self.kept())

    @invariant()
    def every_hash_finds_a_block_that_has_it(self) -> None:
        for hash_ in HASHES:
            holders = {block for block, known in self.hashes.items() if known == hash_}
            found = self.allocator.find_kv_blocks([hash_]).tolist()
            assert bool(found) == bool(holders)
            assert set(found) <= holders


TestRefCounts = RefCountMachine.TestCase
TestRefCounts.settings = settings(max_examples=150, stateful_step_count=30)
