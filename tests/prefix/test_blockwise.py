"""Policies that are blockwise do not mind how many calls store and evict."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.choices import POLICIES
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.tree import Ids

BLOCKWISE = sorted(name for name, row in POLICIES.items() if row.load().blockwise)
CAPACITY = 40


class Cache:
    """An index whose requests store and whose evictions go in one call, or key by key."""

    def __init__(self, policy: str, *, by_key: bool) -> None:
        self.index = BlockHashIndex(make_policy(policy, CAPACITY))
        self.by_key = by_key

    def pin(self, chain: Ids) -> Lease:
        return self.index.pin(chain)

    def store(self, lease: Lease, keys: Ids) -> None:
        for part in self.parts(keys):
            self.index.extend(lease, part, part)

    def evict(self, count: int) -> set[int]:
        gone = [self.index.evict(len(part)).tolist() for part in self.parts(np.arange(count))]
        return {key for part in gone for key in part}

    def parts(self, keys: Ids) -> Sequence[Ids]:
        return np.split(keys, len(keys)) if self.by_key and len(keys) else [keys]


def evicted(policy: str, seed: int, *, by_key: bool) -> list[set[int]]:
    """What goes when, while requests side by side store chains of ids in parts."""
    draw, cache = random.Random(seed), Cache(policy, by_key=by_key)
    chains, told = [np.arange(1, 9)], list[set[int]]()
    running: list[tuple[Lease, Ids]] = []
    for number in range(2, 30):
        before = draw.choice(chains)
        new = np.arange(draw.randint(1, 8)) + 100 * number
        chain = np.concatenate([before[: draw.randint(0, len(before))], new])
        chains.append(chain)
        running.append((cache.pin(chain), chain))
        for lease, whole in draw.sample(running, draw.randint(0, len(running))):
            cache.store(lease, whole[lease.length :][: draw.randint(1, 6)])
        while running and draw.random() < 0.5:
            cache.index.release(running.pop(draw.randrange(len(running)))[0])
        room = cache.index.held - CAPACITY
        wanted = max(room, draw.randint(0, 6))
        told.append(cache.evict(min(wanted, cache.index.evictable)))
    return told


@pytest.mark.parametrize("policy", BLOCKWISE)
@given(seed=st.integers(0, 2**20))
def test_the_same_goes_at_the_same_time(policy: str, seed: int) -> None:
    assert evicted(policy, seed, by_key=True) == evicted(policy, seed, by_key=False)


def test_a_policy_that_weighs_runs_does_mind() -> None:
    seeds = range(40)
    for policy in ("gdsf", "arc"):
        assert not POLICIES[policy].load().blockwise
        assert any(
            evicted(policy, seed, by_key=True) != evicted(policy, seed, by_key=False)
            for seed in seeds
        )


def test_an_index_says_what_its_policy_is() -> None:
    said = {name: Cache(name, by_key=False).index.blockwise for name in POLICIES}
    assert [name for name, blockwise in sorted(said.items()) if blockwise] == BLOCKWISE
    assert BLOCKWISE == ["fifo", "lfu", "lfu-aged", "lru"]
