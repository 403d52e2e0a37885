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
# libCacheSim's name, and by how much hit rates may differ: where several blocks are equal, whose
# turn it is comes out otherwise.
RULES = {
    "lru": ("LRU", 0),
    "fifo": ("FIFO", 0),
    "lfu": ("LFU", 0),
    "sieve": ("Sieve", 0),
    "s3fifo": ("S3FIFO", 0.001),
}
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
    assert our_share(name, capacity, ids) == pytest.approx(
        their_share(name, capacity, ids), abs=RULES[name][1]
    )


@needs_conversation
@pytest.mark.parametrize("name", ["lfu", "sieve", "s3fifo"])
def test_blocks_of_the_conversation_trace_hit_as_in_libcachesim(name: str) -> None:
    with CONVERSATION.open() as file:
        ids = [id_ + 1 for line in file for id_ in json.loads(line)["hash_ids"]]
    ids = ids[:BLOCKS]
    assert our_share(name, 5_859, ids) == pytest.approx(their_share(name, 5_859, ids), abs=0.0001)


def their_share(name: str, capacity: int, ids: list[int]) -> float:
    cache = getattr(lcs, RULES[name][0])(cache_size=capacity)
    hits = 0
    for time, id_ in enumerate(ids):
        request = lcs.Request()
        request.obj_id, request.obj_size, request.clock_time = id_, 1, time
        hits += cache.get(request)
    return hits / len(ids)


def our_share(name: str, capacity: int, ids: list[int]) -> float:
    return replay([[id_] for id_ in ids], capacity, make_policy(name, capacity)) / len(ids)
