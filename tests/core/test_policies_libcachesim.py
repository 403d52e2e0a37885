"""Where blocks have no history the rules are libCacheSim's, and so are the hits.

``DSV4KV_WHOLE_TRACES=1`` (``make traces``) replays all of the conversation trace.
"""

import json
import os

import numpy as np
import pytest

from dsv4kv.core.policies import make_policy
from tests.core.test_policies import replay
from tests.replay.texts import CONVERSATION, needs_conversation

lcs = pytest.importorskip("libcachesim", reason="libcachesim is not installed (extra: test)")
RULES = {"lru": "LRU", "fifo": "FIFO", "lfu": "LFU"}
"""Names in libCacheSim."""
REQUESTS, IDS = 10_000, 4_000
BLOCKS = None if os.environ.get("DSV4KV_WHOLE_TRACES") else 36_000  # of 288,500


@pytest.fixture(scope="module", params=[(0, 1.05), (1, 1.3)], ids=["flat", "steep"])
def ids(request: pytest.FixtureRequest) -> list[int]:
    seed, exponent = request.param
    drawn: list[int] = (np.random.default_rng(seed).zipf(exponent, REQUESTS) % IDS).tolist()
    return drawn


@pytest.mark.parametrize("capacity", [300, 2_000])
@pytest.mark.parametrize("name", RULES)
def test_single_blocks_hit_as_in_libcachesim(name: str, capacity: int, ids: list[int]) -> None:
    assert our_share(name, capacity, ids) == their_share(name, capacity, ids)


@needs_conversation
def test_blocks_of_the_conversation_trace_hit_as_in_libcachesim() -> None:
    with CONVERSATION.open() as file:
        ids = [id_ + 1 for line in file for id_ in json.loads(line)["hash_ids"]]
    ids = ids[:BLOCKS]
    assert our_share("lfu", 5_859, ids) == their_share("lfu", 5_859, ids)


def their_share(name: str, capacity: int, ids: list[int]) -> float:
    cache = getattr(lcs, RULES[name])(cache_size=capacity)
    hits = 0
    for time, id_ in enumerate(ids):
        request = lcs.Request()
        request.obj_id, request.obj_size, request.clock_time = id_, 1, time
        hits += cache.get(request)
    return hits / len(ids)


def our_share(name: str, capacity: int, ids: list[int]) -> float:
    return replay([[id_] for id_ in ids], capacity, make_policy(name)) / len(ids)
