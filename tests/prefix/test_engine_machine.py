"""In any order of requests, decoding and eviction what is shared is right and nothing is lost."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.policies import POLICIES
from dsv4kv.prefix.store import PrefixStore
from tests.prefix.engine import Engine
from tests.prefix.trees import check_tree

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=18)


class EngineMachine(RuleBasedStateMachine):
    """Requests over few blocks and two tokens, so that prefixes meet and memory is short."""

    @initialize(
        blocks=st.integers(4, 14),
        kind=st.sampled_from(["radix", "block_hash"]),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def build(self, blocks: int, kind: str, policy: str) -> None:
        self.engine = Engine(blocks, kind, policy)
        self.finished: list[list[int]] = []

    @rule(tokens=TOKENS)
    def start(self, tokens: list[int]) -> None:
        self.engine.start(tokens)

    @precondition(lambda self: self.finished)
    @rule(data=st.data(), more=TOKENS)
    def next_turn(self, data: st.DataObject, more: list[int]) -> None:
        self.engine.start((data.draw(st.sampled_from(self.finished)) + more)[:30])

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def decode(self, data: st.DataObject, more: list[int]) -> None:
        request = data.draw(st.sampled_from(self.engine.running))
        if len(request.tokens) < 30:
            self.engine.decode(request, more)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.engine.running))
        self.engine.finish(request)
        self.finished.append(request.tokens)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        evictable = self.engine.index.stats().evictable
        self.engine.evict(data.draw(st.integers(0, evictable)))

    @rule(beyond=st.integers(1, 3))
    def evict_too_many(self, beyond: int) -> None:
        before = self.engine.index.stats()
        with pytest.raises(OutOfBlocks):
            self.engine.index.evict(before.evictable + beyond)
        assert self.engine.index.stats() == before

    @invariant()
    def reference_counts_equal_owners(self) -> None:
        owners = Counter(block for request in self.engine.running for block in request.row)
        owners.update(self.engine.cached)
        refs = self.engine.allocator.refs(np.arange(self.engine.blocks)).tolist()
        assert refs == [owners[block] for block in range(self.engine.blocks)]

    @invariant()
    def every_block_is_unused_or_held(self) -> None:
        allocator = self.engine.allocator
        held = sum(allocator.refs(np.arange(self.engine.blocks)) > 0)
        assert allocator.num_unused + held == self.engine.blocks

    @invariant()
    def the_tree_is_whole_and_its_counts_are_right(self) -> None:
        index = self.engine.index
        assert isinstance(index, PrefixStore)
        check_tree(index, [request.lease for request in self.engine.running])
        assert index.stats().held == sum(self.engine.cached.values())

    @invariant()
    def running_requests_stay_cached(self) -> None:
        for request in self.engine.running:
            match = self.engine.index.match(self.engine.keys(request.tokens))
            assert match.length == request.lease.length == len(self.engine.keys(request.tokens))


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=150, stateful_step_count=30)
