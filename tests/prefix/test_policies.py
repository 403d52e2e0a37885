"""Every policy evicts, run by run, what its rule evicts block by block."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.choices import OFFLINE, POLICIES
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.tree import Ids
from tests.examples import examples
from tests.prefix.plain_policies import PLAIN, plain_run_hits
from tests.prefix.replays import Block, plain_hits, replay

CAPACITY = 12
RULES: dict[str, Callable[[Block], Any] | None] = {
    "lru": lambda block: block.used,
    "fifo": lambda block: block.order,
    "lfu": lambda block: (block.uses, block.used),
    "lfu-aged": lambda block: (block.score, block.used),
    "sieve": None,
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
def traces(draw: st.DrawFn) -> list[Ids]:
    """Prompts over two tokens as chained ids: a prefix's number is its bits behind a one."""
    prompts = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=40))
    prompts += many_prompts(Random(draw(st.integers(0, 2**20))), draw(st.integers(0, 60)))
    return [
        np.array([int("1" + "".join(map(str, p[: n + 1])), 2) for n in range(len(p))])
        for p in prompts
    ]


@pytest.mark.parametrize("name", sorted(RULES))
@given(chains=traces())
@examples(100)
def test_runs_are_judged_as_their_blocks_would_be(name: str, chains: list[Ids]) -> None:
    policy = make_policy(name, CAPACITY, chains)
    assert replay(chains, CAPACITY, policy).hit == plain_hits(chains, CAPACITY, RULES[name])


@pytest.mark.parametrize("capacity", [10, 24])
@pytest.mark.parametrize("name", sorted(PLAIN))
@given(chains=traces())
@examples(100)
def test_policies_with_memories_hit_what_their_rules_told_plainly_do(
    name: str, capacity: int, chains: list[Ids]
) -> None:
    policy = make_policy(name, capacity)
    assert replay(chains, capacity, policy).hit == plain_run_hits(chains, capacity, name)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(ids=st.lists(st.integers(0, 6), max_size=60))
@examples(100)
def test_no_policy_beats_belady_on_single_blocks(name: str, ids: list[int]) -> None:
    chains = [np.array([id_]) for id_ in ids]
    bound = replay(chains, 3, make_policy(OFFLINE, 3, chains)).hit
    assert replay(chains, 3, make_policy(name, 3)).hit <= bound


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"'mru' is not an eviction policy.*: choose one of lru, .*"
    ):
        make_policy("mru")


@pytest.mark.parametrize("name", ["s3fifo", "arc"])
def test_policies_with_queues_of_their_own_need_a_capacity(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the policy {name} needs the capacity"):
        make_policy(name)


def test_belady_needs_the_trace() -> None:
    with pytest.raises(ConfigError, match="needs to know the whole trace"):
        make_policy("belady", 10)


def test_gdsf_keeps_many_short_runs_at_the_cost_of_one_long_one() -> None:
    short = [np.array([number]) for number in range(1, 9)]
    long = np.arange(100, 108)
    kept = replay([*short, long, *short, np.arange(200, 204), *short], 16, make_policy("gdsf"))
    assert kept.hit == 2 * len(short)


def test_belady_loses_only_as_much_of_a_run_as_is_needed_last() -> None:
    chains = [np.array(c) for c in ([1, 2, 3, 4], [9, 8], [1, 2], [1, 2, 3])]
    # Room for two more: 4 is never needed again, 3 later than 2, so [1, 2] stays.
    assert replay(chains, 4, make_policy("belady", 4, chains)).hit == 4
