"""In any order of requests, decoding and eviction the index does what a plain one does."""

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.choices import POLICIES
from dsv4kv.errors import ConfigError, Dsv4kvError, NotOwner, OutOfBlocks
from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.store import PrefixStore
from tests.examples import examples
from tests.prefix.engine import BLOCK_TOKENS, Engine, Running, Tokens
from tests.prefix.indexes import INDEXES
from tests.prefix.trees import check_tree

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=18)
LONGEST = 30


class EngineMachine(RuleBasedStateMachine):
    """Requests over few blocks and two tokens, so that prefixes meet and memory is short."""

    @initialize(
        blocks=st.integers(4, 14),
        kind=st.sampled_from(sorted(INDEXES)),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def build(self, blocks: int, kind: str, policy: str) -> None:
        self.engine = Engine(blocks, kind, policy)
        self.known: list[Tokens] = []
        self.released: list[Lease] = []

    # What an engine does.

    @rule(tokens=TOKENS)
    def start(self, tokens: Tokens) -> None:
        self.engine.start(tokens)
        self.known = [*self.known[-15:], tokens]

    @precondition(lambda self: self.known)
    @rule(data=st.data(), more=TOKENS)
    def next_turn(self, data: st.DataObject, more: Tokens) -> None:
        before = data.draw(st.sampled_from(self.known))
        self.start((before + more)[:LONGEST])

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def decode(self, data: st.DataObject, more: Tokens) -> None:
        self.go_on(data.draw(st.sampled_from(self.engine.running)), more)

    def go_on(self, request: Running, more: Tokens) -> None:
        if len(request.tokens) < LONGEST:
            self.engine.decode(request, more)

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.engine.running)))

    def end(self, request: Running) -> None:
        self.engine.finish(request)
        self.known = [*self.known[-15:], request.tokens]
        self.released = [*self.released[-3:], request.lease]

    @precondition(lambda self: self.engine.index.stats().evictable)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        evictable = self.engine.index.stats().evictable
        self.engine.evict(data.draw(st.integers(1, evictable)))

    @rule(seed=st.integers(0, 2**20), events=st.integers(1, 60))
    def much_happens(self, seed: int, events: int) -> None:
        """Single events seldom fill the memory: many, of which most are as in an engine."""
        draw = random.Random(seed)
        for _ in range(events):
            self.something_happens(draw)
            self.check_everything()

    def something_happens(self, draw: random.Random) -> None:
        running, tokens = self.engine.running, draw.choices((0, 1), k=draw.randint(1, 18))
        events = ("start", "turn", "decode", "finish", "evict", "collide")
        what = draw.choices(events, (4, 6, 8, 8, 2, 1))[0]
        if what == "start" or (what == "turn" and not self.known):
            self.start(tokens)
        elif what == "turn":
            before = draw.choice(self.known)
            self.start((before[: draw.randint(1, len(before))] + tokens)[:LONGEST])
        elif what == "evict":
            self.engine.evict(draw.randint(0, self.engine.index.stats().evictable))
        elif what == "collide":
            self.collide(draw)
        elif running and what == "decode":
            self.go_on(draw.choice(running), tokens[:6])
        elif running:
            self.end(draw.choice(running))

    def collide(self, draw: random.Random) -> None:
        """Equal keys of other tokens are not reused, from wherever they differ."""
        engine = self.engine
        tokens = draw.choice(self.known) if self.known else []
        if not engine.by_token and (cached := len(engine.plain.match(engine.chain(tokens)))):
            engine.collide(tokens, draw.randrange(cached))

    # What must be refused, and changes nothing.

    def refuses(self, error: type[Dsv4kvError], call: Callable[[], object]) -> None:
        before = self.engine.index.stats()
        with pytest.raises(error):
            call()
        assert self.engine.index.stats() == before

    @rule(beyond=st.integers(1, 3))
    def evict_too_many(self, beyond: int) -> None:
        index = self.engine.index
        self.refuses(OutOfBlocks, lambda: index.evict(index.stats().evictable + beyond))
        self.refuses(OutOfBlocks, lambda: index.evict(-beyond))

    @precondition(lambda self: self.released)
    @rule(data=st.data(), tokens=TOKENS)
    def use_a_lease_that_has_ended(self, data: st.DataObject, tokens: Tokens) -> None:
        lease = data.draw(st.sampled_from(self.released))
        self.refuses(NotOwner, lambda: self.engine.index.release(lease))
        self.refuses(NotOwner, lambda: self.extend(lease, tokens))

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), tokens=TOKENS)
    def give_too_many_blocks(self, data: st.DataObject, tokens: Tokens) -> None:
        lease = data.draw(st.sampled_from(self.engine.running)).lease
        self.refuses(ConfigError, lambda: self.extend(lease, tokens, beyond=LONGEST))

    def extend(self, lease: Lease, tokens: Tokens, beyond: int = 0) -> None:
        """Store tokens in blocks that do not exist: it must be refused."""
        count = len({(len(key) - 1) // BLOCK_TOKENS for key in self.engine.chain(tokens)})
        blocks = np.arange(100, 100 + count + beyond)
        self.engine.index.extend(lease, self.engine.keys(tokens), blocks)

    # What always holds.

    @invariant()
    def check_everything(self) -> None:
        self.references_are_counted()
        self.the_tree_is_whole_and_its_counts_are_right()
        for request in self.engine.running:
            assert request.lease.length == len(self.engine.chain(request.tokens))
            self.engine.check_match(request.tokens)
        for tokens in self.known[-4:]:
            self.engine.check_match(tokens)

    def references_are_counted(self) -> None:
        """References are those of requests and index; every block is unused or held."""
        engine = self.engine
        owners = Counter(block for request in engine.running for block in request.row)
        owners.update(engine.plain.held())
        refs = engine.allocator.refs(np.arange(engine.blocks)).tolist()
        assert refs == [owners[block] for block in range(engine.blocks)]
        assert engine.allocator.num_unused + len(+owners) == engine.blocks

    def the_tree_is_whole_and_its_counts_are_right(self) -> None:
        index, plain = self.engine.index, self.engine.plain
        assert isinstance(index, PrefixStore)
        check_tree(index, [request.lease for request in self.engine.running])
        stats = index.stats()
        assert (stats.held, stats.pinned) == (len(plain.held()), plain.pinned())
        assert stats.cached == len(plain.block_of)


TestEngine = EngineMachine.TestCase
TestEngine.settings = examples(150, stateful_step_count=20)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("kind", sorted(INDEXES))
def test_every_index_and_policy_serves_a_long_day_as_a_plain_index_would(
    kind: str, policy: str
) -> None:
    machine, draw = EngineMachine(), random.Random(1)
    for blocks in (6, 12, 24):
        machine.build(blocks, kind, policy)
        for _ in range(100):
            machine.something_happens(draw)
            machine.check_everything()
