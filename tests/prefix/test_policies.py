"""Every policy evicts, run by run, what its rule evicts block by block."""

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.choices import OFFLINE, POLICIES
from dsv4kv.core import COMPILED
from dsv4kv.core.tree import Lease, PrefixTree
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.policies import make_policy
from tests.examples import examples
from tests.prefix.plain_policies import PLAIN, plain_run_hits
from tests.prefix.replays import Block, plain_hits, replay
from tests.prefix.traces import CONVERSATION, needs_conversation

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
def traces(draw: st.DrawFn) -> list[list[int]]:
    """Prompts over two tokens as chained ids: a prefix's number is its bits behind a one."""
    prompts = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=40))
    prompts += many_prompts(Random(draw(st.integers(0, 2**20))), draw(st.integers(0, 60)))
    return [[int("1" + "".join(map(str, p[: n + 1])), 2) for n in range(len(p))] for p in prompts]


@pytest.mark.parametrize("name", sorted(RULES))
@given(chains=traces())
@examples(100)
def test_runs_are_judged_as_their_blocks_would_be(name: str, chains: list[list[int]]) -> None:
    policy = make_policy(name, CAPACITY, chains)
    assert replay(chains, CAPACITY, policy) == plain_hits(chains, CAPACITY, RULES[name])


@pytest.mark.parametrize("capacity", [10, 24])
@pytest.mark.parametrize("name", sorted(PLAIN))
@given(chains=traces())
@examples(100)
def test_policies_with_memories_hit_what_their_rules_told_plainly_do(
    name: str, capacity: int, chains: list[list[int]]
) -> None:
    policy = make_policy(name, capacity)
    assert replay(chains, capacity, policy) == plain_run_hits(chains, capacity, name)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(ids=st.lists(st.integers(0, 6), max_size=60))
@examples(100)
def test_no_policy_beats_belady_on_single_blocks(name: str, ids: list[int]) -> None:
    chains = [[id_] for id_ in ids]
    bound = replay(chains, 3, make_policy(OFFLINE, 3, chains))
    assert replay(chains, 3, make_policy(name, 3)) <= bound


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"'mru' is not an eviction policy.*: choose one of lru, .*"
    ):
        make_policy("mru")


def test_belady_needs_the_trace() -> None:
    with pytest.raises(ConfigError, match="needs to know the whole trace"):
        make_policy("belady", 10)


def test_gdsf_keeps_many_short_runs_at_the_cost_of_one_long_one() -> None:
    short = [[number] for number in range(1, 9)]
    long = [*range(100, 108)]
    kept = replay([*short, long, *short, [*range(200, 204)], *short], 16, make_policy("gdsf"))
    assert kept == 2 * len(short)


def test_belady_loses_only_as_much_of_a_run_as_is_needed_last() -> None:
    chains = [[1, 2, 3, 4], [9, 8], [1, 2], [1, 2, 3]]
    # Room for two more: 4 is never needed again, 3 later than 2, so [1, 2] stays.
    assert replay(chains, 4, make_policy("belady", 4, chains)) == 4


# ---- what they remember -----------------------------------------------------------------------


def serve(tree: PrefixTree, keys: list[int]) -> None:
    tree.serve([keys], 10**6)


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("name", ["s3fifo", "arc"])
def test_a_prompt_that_returns_after_eviction_is_kept_longer(name: str, chained: bool) -> None:
    tree = PrefixTree(make_policy(name, 40), chained=chained)
    known, other, new = ([n, *((7, 7, 7) if not chained else range(100 * n, 100 * n + 3))]
                         for n in (1, 2, 3))  # fmt: skip
    serve(tree, known)
    serve(tree, other)
    tree.evict(8)
    serve(tree, known)
    serve(tree, new)
    tree.evict(4)
    assert (tree.match_length(known), tree.match_length(new)) == (4, 0)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_an_order_does_not_grow_while_nothing_is_evicted(name: str) -> None:
    policy = make_policy(name, 1_000)
    tree, chains = PrefixTree(policy), [[number] for number in range(20)]
    for _ in range(200):
        tree.serve(chains, 1_000)
    if not COMPILED:
        orders = [policy.order, *getattr(policy, "_orders", ())]
        assert sum(len(order._heap) for order in orders) <= 2 * (2 * len(chains) + 64)


def evicted(policy: str, seed: int, *, by_key: bool) -> list[set[int]]:
    """What goes when, while requests side by side store and evict in one call, or key by key."""
    draw, tree = Random(seed), PrefixTree(make_policy(policy, 40))

    def parts(keys: list[int]) -> list[list[int]]:
        return [[key] for key in keys] if by_key and keys else [keys]

    chains, gone = [[*range(1, 9)]], list[set[int]]()
    running: list[tuple[Lease, list[int]]] = []
    for number in range(2, 30):
        before = draw.choice(chains)
        new = [100 * number + n for n in range(draw.randint(1, 8))]
        chains.append(before[: draw.randint(0, len(before))] + new)
        running.append((tree.pin(chains[-1]), chains[-1]))
        for lease, whole in draw.sample(running, draw.randint(0, len(running))):
            for part in parts(whole[lease.length :][: draw.randint(1, 6)]):
                tree.extend(lease, part, [])
        while running and draw.random() < 0.5:
            tree.release(running.pop(draw.randrange(len(running)))[0])
        wanted = min(max(tree.held - 40, draw.randint(0, 6)), tree.evictable)
        gone.append({k for part in parts([0] * wanted) for k in tree.evict(len(part))})
    return gone


BLOCKWISE = ["fifo", "lfu", "lfu-aged", "lru"]


@pytest.mark.parametrize("policy", BLOCKWISE)
@given(seed=st.integers(0, 2**20))
def test_blockwise_policies_do_not_mind_how_many_calls_store_and_evict(
    policy: str, seed: int
) -> None:
    assert evicted(policy, seed, by_key=True) == evicted(policy, seed, by_key=False)


def test_a_policy_says_whether_it_is_blockwise() -> None:
    assert sorted(name for name in POLICIES if make_policy(name).blockwise) == BLOCKWISE


# ---- the Mooncake conversation trace: hit rates to the digits known ------------------------

# Exact LRU, a hit ends at the first miss, a request's last blocks leave first.
LRU = {1_828: 0.05247, 9_140: 0.19578, 18_279: 0.27891, 50_000: 0.35456, 200_000: 0.36641}
OTHERS = {
    "fifo": (0.1361, 0.2788, 0.3454),
    "lfu": (0.0969, 0.1949, 0.3069),
    # Here SIEVE's hand never comes round: as with LFU the oldest prompt end never used again goes.
    "sieve": (0.0969, 0.1949, 0.3069),
    "lfu-aged": (0.1444, 0.2879, 0.3396),
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
    hits = replay(trace(), capacity, make_policy(name, capacity, trace()))
    assert hits / sum(map(len, trace())) == pytest.approx(rate, abs=5.1e-5)
