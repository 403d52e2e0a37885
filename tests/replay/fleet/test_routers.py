"""The rules of routers, on examples worked out by hand."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from dsv4kv.core.fleet import View
from dsv4kv.core.served import Served
from dsv4kv.replay.fleet import routers


def asked(
    ids: Sequence[int] = (), *, at: float = 0.0, session: int = 0, tokens: int = 0
) -> Served:
    """A request whose ids stand for 100 tokens each."""
    size = tokens or 100 * len(ids)
    made = Served(0, at, size, 1, lambda _: [], ids, 100 if ids else 0)
    made.session = session
    return made


def opened(name: str, replicas: int = 2) -> routers.Router:
    return routers.open_router(name, replicas, 16, Random(0))


HOT = View(device_tokens=96, decode_blocks=20, requests=2)
BUSY = View(device_tokens=32, prefill_tokens=80, decode_blocks=8, requests=1)
TEN_BLOCKS = asked(tokens=160)


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        # (160 − 96) / 16 + 20, and (80 + 160 − 32) / 16 + 8
        ("dynamo", [24.0, 21.0]),
        # 4 · max(0, 160 − 2 · 96) / 16 + 20 + 64 · 2, and 4 · (240 − 2 · 32) / 16 + 8 + 64
        ("dynamo-agentic", [148.0, 116.0]),
        ("dynamo-decode", [20.0, 8.0]),
    ],
)
def test_dynamos_costs(name: str, costs: list[float]) -> None:
    router = opened(name)
    assert isinstance(router, routers.Dynamo)
    assert router.costs(TEN_BLOCKS, [HOT, BUSY]) == pytest.approx(costs, rel=1e-15)
    assert router.choose(TEN_BLOCKS, [HOT, BUSY]) == 1


@pytest.mark.parametrize(
    ("loads", "place"),
    [
        ([100, 30], 1),
        ([94, 30], 0),  # 64 is not more than 64
        ([300, 220], 0),  # 300 is not more than 330
    ],
)
def test_the_gateway_is_out_of_balance_beyond_both_thresholds(
    loads: list[int], place: int
) -> None:
    router = opened("cache_aware")
    router.sent(asked([1, 2]), 0)
    assert router.choose(asked([1, 2]), [View(requests=load) for load in loads]) == place


def test_the_gateways_tree_forgets_what_was_used_least_recently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "_TREE_TOKENS", 2_500)  # 25 ids of 100 tokens
    monkeypatch.setattr(routers, "_EVICTION_S", 30.0)
    router = opened("cache_aware")
    router.sent(asked(range(10), at=1.0), 1)
    router.sent(asked(range(100, 125), at=31.0), 1)
    views = [View(), View(requests=1)]
    assert router.choose(asked(range(10), at=32.0), views) == 0
    assert router.choose(asked(range(100, 125), at=32.0), views) == 1


def test_consistent_hashing_keeps_sessions_and_moves_few_when_a_replica_joins() -> None:
    keys = range(2000)
    before, after = routers.Ring(4), routers.Ring(5)
    moved = sum(before.find(key) != after.find(key) for key in keys)
    assert 0.12 < moved / len(keys) < 0.28  # a fifth
    shares = Counter(before.find(key) for key in keys)
    assert min(shares.values()) > 350


def test_llm_d_adds_a_prefix_from_the_least_to_the_most_a_free_cache_and_a_short_queue() -> None:
    router = opened("llm-d:precise")
    assert isinstance(router, routers.Llmd)
    for found, scores in (((80, 60, 100), (2.0, 3.5, 5.5)), ((0, 7, 0), (0.5, 6.5, 2.5))):
        views = [View(waiting=4, usage=0.75), View(usage=0.25), View(waiting=1, usage=0.5)]
        for view, tokens in zip(views, found, strict=True):
            view.device_tokens = tokens
        assert router.scores(views) == list(scores)
