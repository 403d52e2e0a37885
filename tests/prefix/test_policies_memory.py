"""What policies remember: evicted prompts by what they are, and no more than is of use."""

import numpy as np
import pytest

from dsv4kv.choices import POLICIES
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.policies.contract import Ghosts, Policy
from dsv4kv.prefix.radix import PrefixCacheManager, RadixIndex
from dsv4kv.prefix.store import PrefixStore
from dsv4kv.prefix.tree import Ids

KEYS = {"radix": 1, "block_hash": 100}  # a token does not say what came before it, an id does


def make(kind: str, policy: Policy) -> PrefixStore:
    return RadixIndex(1, policy) if kind == "radix" else BlockHashIndex(policy)


def prompt(kind: str, number: int) -> Ids:
    """Four keys; the prompts of a radix index share all tokens but the first."""
    return np.array([number, 7, 7, 7]) if kind == "radix" else number * 100 + np.arange(4)


def serve(index: PrefixStore, keys: Ids) -> None:
    lease = index.pin(keys)
    index.extend(lease, keys[lease.length :], np.arange(len(keys) - lease.length))
    index.release(lease)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", ["s3fifo", "arc"])
def test_a_prompt_that_returns_after_eviction_is_kept_longer(name: str, kind: str) -> None:
    index = make(kind, make_policy(name, 40))
    known, other, new = (prompt(kind, number) for number in (1, 2, 3))
    serve(index, known)
    serve(index, other)
    index.evict(8)
    serve(index, known)
    serve(index, new)
    index.evict(4)
    assert index.match(known).length == 4
    assert index.match(new).length == 0


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", ["s3fifo", "arc"])
def test_a_prompt_that_was_never_here_is_not_taken_for_one(name: str, kind: str) -> None:
    index = make(kind, make_policy(name, 40))
    first, other, new = (prompt(kind, number) for number in (1, 2, 3))
    serve(index, other)
    index.evict(4)
    serve(index, first)
    serve(index, new)
    index.evict(4)
    assert index.match(first).length == 0
    assert index.match(new).length == 4


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_an_order_does_not_grow_while_nothing_is_evicted(name: str) -> None:
    policy = make_policy(name, 1_000)
    index = BlockHashIndex(policy)
    chains = [np.array([number]) for number in range(20)]
    for _ in range(200):
        for chain in chains:
            serve(index, chain)
    orders = [order for order in vars(policy).values() if hasattr(order, "_heap")]
    orders += list(vars(policy).get("_orders", ()))
    assert orders
    assert sum(len(order._heap) for order in orders) <= 2 * (2 * len(chains) + 64)


def test_ghosts_forget_the_oldest_beyond_their_size() -> None:
    ghosts = Ghosts()
    for key in "abc":
        ghosts.add(key, 3)
    ghosts.add("a", 2)  # known again: the newest
    ghosts.shrink(5)
    assert [key in ghosts for key in "abc"] == [True, False, True]
    assert ghosts.size == 5
    assert (ghosts.take("a"), ghosts.take("a"), ghosts.size) == (2, 0, 3)
    ghosts.shrink(-1)
    assert ghosts.size == 0


def test_what_s3fifo_moved_to_make_room_goes_before_what_took_the_room() -> None:
    rows = PrefixCacheManager(20, make_policy("s3fifo", 20))
    prompts = np.arange(24, dtype=np.int32).reshape(12, 2)
    moved, new, *others = prompts
    rows.insert_row(new, 0, 1)
    rows.evict(2)  # remembered: it comes back to the main queue
    for prompt in (moved, moved, moved, *others[:9], new):
        rows.insert_row(prompt, 0, 1)
    for prompt in (new, moved):  # whichever was used last
        rows.find(prompt)
    rows.evict(16)
    assert [rows.match(prompt).length for prompt in (moved, new)] == [2, 2]
    rows.evict(2)
    assert [rows.match(prompt).length for prompt in (moved, new)] == [0, 2]


def test_runs_worth_the_same_to_gdsf_go_by_their_last_use() -> None:
    index = BlockHashIndex(make_policy("gdsf"))
    short, long = np.arange(1, 6), np.arange(100, 135)
    for keys in (short, *[long] * 7):  # 1/5 and 7/35
        serve(index, keys)
    index.evict(1)
    assert (index.match(short).length, index.match(long).length) == (4, 35)
