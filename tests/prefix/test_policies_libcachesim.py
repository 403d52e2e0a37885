"""Where blocks have no history the rules are libCacheSim's, and so are the hits."""

import numpy as np
import pytest

from dsv4kv.prefix.policies import make_policy
from tests.prefix.replays import replay

lcs = pytest.importorskip("libcachesim", reason="libcachesim is not installed (extra: test)")
# libCacheSim's name, and by how much hit rates may differ: where several blocks are equal, whose
# turn it is comes out otherwise.
RULES = {
    "lru": ("LRU", 0),
    "fifo": ("FIFO", 0),
    "lfu": ("LFU", 0),
    "sieve": ("Sieve", 0),
    "s3fifo": ("S3FIFO", 0.001),
    "arc": ("ARC", 0.001),
    "gdsf": ("GDSF", 0.001),
    "lfu-aged": ("GDSF", 0.001),  # with blocks of one size its priority is uses + age, too
}
REQUESTS, IDS = 20_000, 4_000


@pytest.fixture(scope="module", params=[(0, 1.05), (1, 1.3)], ids=["flat", "steep"])
def ids(request: pytest.FixtureRequest) -> list[int]:
    seed, exponent = request.param
    drawn: list[int] = (np.random.default_rng(seed).zipf(exponent, REQUESTS) % IDS).tolist()
    return drawn


@pytest.mark.parametrize("capacity", [300, 2_000])
@pytest.mark.parametrize("name", RULES)
def test_single_blocks_hit_as_in_libcachesim(name: str, capacity: int, ids: list[int]) -> None:
    theirs_name, tolerance = RULES[name]
    cache = getattr(lcs, theirs_name)(cache_size=capacity)
    theirs = 0
    for time, id_ in enumerate(ids):
        request = lcs.Request()
        request.obj_id, request.obj_size, request.clock_time = id_, 1, time
        theirs += cache.get(request)
    chains = [np.array([id_]) for id_ in ids]
    ours = replay(chains, capacity, make_policy(name, capacity)).hit
    assert ours / REQUESTS == pytest.approx(theirs / REQUESTS, abs=tolerance)
