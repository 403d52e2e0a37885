"""Every policy evicts, run by run, what its rule evicts block by block."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.policies import Policy, make_policy
from dsv4kv.core.tree import PrefixTree
from dsv4kv.errors import ConfigError
from tests.examples import examples
from tests.replay.texts import CONVERSATION, needs_conversation

NEVER = 10**9


def replay(chains: Sequence[list[int]], capacity: int, policy: Policy) -> int:
    """Serve every chain in turn; keys hit by all."""
    return sum(PrefixTree(policy).serve(chains, capacity))


class Block:
    """One cached block and all that any policy may want to know about it."""

    def __init__(self, parent: int | None, request: int, order: int, next_use: int) -> None:
        self.parent = parent
        self.children = 0
        self.stored = self.used = request
        self.order = order  # of a request's blocks the last comes first
        self.uses = 1
        self.next_use = next_use


class PlainCache:
    """Prefix-closed eviction in the plainest way: every leaf is looked at for every block."""

    def __init__(self, capacity: int, rank: Callable[[Block], Any]) -> None:
        """``rank``: the least goes first."""
        self.capacity, self.rank = capacity, rank
        self.blocks: dict[int, Block] = {}
        self.hit = 0

    def request(self, number: int, chain: Sequence[int], next_uses: Sequence[int]) -> None:
        cached = 0
        while cached < len(chain) and chain[cached] in self.blocks:
            cached += 1
        self.hit += cached
        for id_, next_use in zip(chain[:cached], next_uses, strict=False):
            block = self.blocks[id_]
            block.used, block.next_use = number, next_use
            block.uses += 1
        while len(self.blocks) + len(chain) - cached > self.capacity:
            self.drop(set(chain[:cached]))
        for at in range(cached, len(chain)):
            parent = chain[at - 1] if at else None
            if parent is not None:
                self.blocks[parent].children += 1
            self.blocks[chain[at]] = Block(parent, number, number * 1000 - at, next_uses[at])

    def drop(self, kept: set[int]) -> None:
        leaves = [i for i, b in self.blocks.items() if not b.children and i not in kept]
        gone = self.blocks.pop(min(leaves, key=lambda id_: self.rank(self.blocks[id_])))
        if gone.parent is not None:
            self.blocks[gone.parent].children -= 1


def plain_hits(chains: Sequence[list[int]], capacity: int, rank: Callable[[Block], Any]) -> int:
    """Blocks hit by all chains, told block by block."""
    cache = PlainCache(capacity, rank)
    upcoming: dict[int, list[int]] = {}
    for number, chain in enumerate(chains):
        for id_ in chain:
            upcoming.setdefault(id_, []).append(number)
    for number, chain in enumerate(chains):
        for id_ in chain:
            upcoming[id_].pop(0)
        cache.request(number, chain, [(upcoming[id_] or [NEVER])[0] for id_ in chain])
    return cache.hit


CAPACITY = 12
RULES: dict[str, Callable[[Block], Any]] = {
    "lru": lambda block: block.used,
    "fifo": lambda block: block.order,
    "lfu": lambda block: (block.uses, block.used),
    "belady": lambda block: -block.next_use,
}


def many_prompts(draw: Random, count: int) -> list[list[int]]:
    """New ones and old ones that go on: enough to fill a cache and to miss what it lost."""
    prompts: list[list[int]] = [[]]
    for _ in range(count):
        before = draw.choice(prompts[-12:])[: draw.randint(0, 8)]
        prompts.append((before + draw.choices((0, 1), k=draw.randint(1, 8)))[:8])
    return prompts[1:]


@st.composite
def traces(draw: st.DrawFn) -> list[list[int]]:
    """Prompts over two tokens as chained ids: a prefix's number is its bits behind a one."""
    prompts = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=40))
    prompts += many_prompts(Random(draw(st.integers(0, 2**20))), draw(st.integers(0, 60)))
    return [[int("1" + "".join(map(str, p[: n + 1])), 2) for n in range(len(p))] for p in prompts]


@pytest.mark.parametrize("name", sorted(RULES))
@given(chains=traces())
@examples(100)
def test_runs_are_judged_as_their_blocks_would_be(name: str, chains: list[list[int]]) -> None:
    policy = make_policy(name, chains)
    assert replay(chains, CAPACITY, policy) == plain_hits(chains, CAPACITY, RULES[name])


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"'oldest' is not an eviction policy.*: choose one of lru, .*"
    ):
        make_policy("oldest")


# ---- the Mooncake conversation trace: hit rates to the digits known ------------------------

# Exact LRU, a hit ends at the first miss, a request's last blocks leave first.
LRU = {1_828: 0.05247, 9_140: 0.19578, 18_279: 0.27891, 50_000: 0.35456, 200_000: 0.36641}
OTHERS = {
    "fifo": (0.1361, 0.2788, 0.3454),
    "lfu": (0.0969, 0.1949, 0.3069),
    "belady": (0.3516, 0.3664, 0.3664),
}
RATES = [("lru", *row) for row in LRU.items()]
CAPACITIES = (5_859, 18_279, 36_558)
RATES += [(n, *row) for n, r in OTHERS.items() for row in zip(CAPACITIES, r, strict=True)]


@cache
def trace() -> list[list[int]]:
    with CONVERSATION.open() as file:
        return [json.loads(line)["hash_ids"] for line in file]


@needs_conversation
@pytest.mark.parametrize(("name", "capacity", "rate"), RATES)
def test_the_conversation_trace_hits_as_published(name: str, capacity: int, rate: float) -> None:
    hits = replay(trace(), capacity, make_policy(name, trace()))
    assert hits / sum(map(len, trace())) == pytest.approx(rate, abs=5.1e-5)
