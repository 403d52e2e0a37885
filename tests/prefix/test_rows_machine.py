"""In any order of calls rows are remembered as a plain index would, and only what they hold."""

import random
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.slots import NO_SLOT, SlotAllocator
from dsv4kv.choices import POLICIES
from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.radix import NOTHING, Found, PrefixCacheManager
from tests.examples import examples
from tests.prefix.plain_index import PlainIndex
from tests.prefix.trees import check_tree

Tokens = tuple[int, ...]


@dataclass
class Running:
    """A prompt whose row is ``slot``; it began with what the lease holds."""

    number: int
    tokens: Tokens
    slot: int
    lease: Lease


@dataclass
class RowEngine:
    """One row a request; what a slot holds stays when it is freed, until it is handed out."""

    capacity: int
    policy: str
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        policy = make_policy(self.policy, self.capacity)
        self.slots = SlotAllocator(6)
        self.rows = PrefixCacheManager(self.capacity, policy, self.copy, self.slots.version)
        self.content: list[Tokens] = [()] * 6
        self.plain = PlainIndex(self.policy, self.capacity)
        self.rows_of: dict[Tokens, list[tuple[int, int]]] = {}
        self.numbers, self.cells = count(), count()

    def start(self, tokens: Tokens) -> None:
        """Copy the longest prefix into a row, compute the rest and remember the row."""
        slot = self.slots.alloc()
        if slot == NO_SLOT:
            return
        self.content[slot] = ()
        number, row = next(self.numbers), np.array(tokens, dtype=np.int32)
        self.check_found(tokens, self.rows.copy_kv(row, slot))
        self.plain.pin(number, chain_of(tokens))
        self.plain.release(number)
        lease = self.rows.pin(row)
        self.plain.pin(number, chain_of(tokens))
        self.content[slot] = tokens
        request = Running(number, tokens, slot, lease)
        self.insert(tokens, slot, request)
        self.running.append(request)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """What is copied is never another prompt's."""
        self.content[target] = self.content[source][:tokens]

    def decode(self, request: Running, more: Tokens) -> None:
        request.tokens += more
        self.content[request.slot] = request.tokens
        self.insert(request.tokens, request.slot, request)

    def insert(self, tokens: Tokens, slot: int, request: Running | None = None) -> None:
        """Remember a row, with the lease of its request or without any."""
        version = self.slots.version(slot)
        chain, plain = chain_of(tokens), self.plain
        present = len(plain.match(chain))
        short = len(plain.block_of) + len(chain) - present - self.capacity
        row = np.array(tokens, dtype=np.int32)
        if request:
            lease = request.lease
            insertion = self.rows.extend_row(lease, row[lease.length :], slot, version)
        else:
            insertion = self.rows.insert_row(row, slot, version)
        assert (insertion.present, insertion.taken.size) == (present, 0)
        cells = [next(self.cells) for _ in chain]  # every key counts by itself
        plain.insert(request.number if request else None, chain, cells, short)
        stored = plain.match(chain)
        assert insertion.stored == len(stored)
        for key in stored:
            known = self.rows_of.get(key, []) if key in chain[:present] else []
            self.rows_of[key] = [(slot, version), *known]

    def finish(self, request: Running) -> None:
        self.running.remove(request)
        self.rows.release(request.lease)
        self.plain.release(request.number)
        self.slots.free(request.slot)

    def evict(self, keys: int) -> None:
        assert self.rows.evict(keys).size == 0
        assert len(list(self.plain.evict(keys))) == keys

    def find(self, tokens: Tokens) -> None:
        number = next(self.numbers)
        self.check_found(tokens, self.rows.find(np.array(tokens, dtype=np.int32)))
        self.plain.pin(number, chain_of(tokens))
        self.plain.release(number)

    def check_found(self, tokens: Tokens, found: Found) -> None:
        """The longest prefix that a row still holds, and the newest row that does."""
        cached, expected = self.plain.match(chain_of(tokens)), NOTHING
        for key in cached:
            for slot, version in self.rows_of[key]:
                if self.slots.version(slot) == version:
                    expected = Found(len(key), slot, version)
                    break
        assert found == expected
        if found.length:
            assert self.content[found.slot][: found.length] == tokens[: found.length]


def chain_of(tokens: Tokens) -> list[Tokens]:
    return [tokens[: end + 1] for end in range(len(tokens))]


class Day:
    """What happens to an engine, drawn at random."""

    def __init__(self, capacity: int, policy: str, seed: int) -> None:
        self.engine, self.draw = RowEngine(capacity, policy), random.Random(seed)
        self.known: list[Tokens] = [()]

    def something_happens(self) -> None:
        engine, draw = self.engine, self.draw
        events = ("start", "decode", "finish", "find", "evict", "again")
        what = draw.choices(events, (5, 3, 5, 2, 1, 1))[0]
        if what in ("start", "find"):
            tokens = self.some_prompt()
            (engine.start if what == "start" else engine.find)(tokens)
        elif what == "evict":
            engine.evict(draw.randint(0, engine.rows.stats().evictable))
        elif engine.running:
            self.go_on(draw.choice(engine.running), what)
        self.check()

    def go_on(self, request: Running, what: str) -> None:
        if what == "decode":
            self.engine.decode(request, self.some_tokens(4))
        elif what == "again":
            self.engine.insert(request.tokens, request.slot)
        else:
            self.engine.finish(request)
            self.known = [*self.known[-12:], request.tokens]

    def some_prompt(self) -> Tokens:
        before = self.draw.choice(self.known)
        return (before[: self.draw.randint(0, len(before))] + self.some_tokens(8))[:24]

    def some_tokens(self, most: int) -> Tokens:
        return tuple(self.draw.choices((0, 1), k=self.draw.randint(1, most)))

    def check(self) -> None:
        engine, stats = self.engine, self.engine.rows.stats()
        check_tree(engine.rows, [request.lease for request in engine.running])
        assert stats.cached == stats.held == len(engine.plain.block_of) <= engine.capacity
        assert stats.pinned == engine.plain.pinned()
        for request in engine.running:
            assert request.lease.length == len(engine.plain.leases[request.number])


@given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 60),
    st.integers(0, 2**20),
    st.integers(1, 60),
)
@examples(150)
def test_rows_are_found_and_forgotten_as_told_plainly(
    policy: str, capacity: int, seed: int, events: int
) -> None:
    day = Day(capacity, policy, seed)
    for _ in range(events):
        day.something_happens()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_forgets_rows_as_told_plainly(policy: str) -> None:
    for capacity in (10, 30, 60):
        day = Day(capacity, policy, seed=1)
        for _ in range(150):
            day.something_happens()
