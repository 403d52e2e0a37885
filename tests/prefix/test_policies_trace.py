"""The Mooncake conversation trace gives the hit rates known for it, to the digits known."""

import json
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.tree import Ids
from tests.prefix.replays import replay

TRACE = Path(__file__).parents[3] / "shared/data/mooncake/conversation_trace.jsonl"
pytestmark = pytest.mark.skipif(not TRACE.exists(), reason="the Mooncake trace is not here")

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
CAPACITIES = (5_859, 18_279, 36_558)


@pytest.fixture(scope="module")
def chains() -> list[Ids]:
    with TRACE.open() as file:
        return [np.array(json.loads(line)["hash_ids"], dtype=np.int64) for line in file]


def hit_rate(chains: list[Ids], capacity: int, name: str) -> float:
    stats = replay(chains, capacity, make_policy(name, capacity, chains))
    return stats.hit / stats.asked


@pytest.mark.parametrize("capacity", LRU)
def test_lru_hits_as_it_does_exactly(chains: list[Ids], capacity: int) -> None:
    assert round(hit_rate(chains, capacity, "lru"), 5) == LRU[capacity]


@pytest.mark.parametrize("at", range(3), ids=[str(c) for c in CAPACITIES])
@pytest.mark.parametrize("name", OTHERS)
def test_other_policies_hit_as_measured_leaves_first(
    chains: list[Ids], name: str, at: int
) -> None:
    assert round(hit_rate(chains, CAPACITIES[at], name), 4) == OTHERS[name][at]
