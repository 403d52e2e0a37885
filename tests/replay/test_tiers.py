"""Tiers below the GPU: what must hold of any, and what follows from their rules."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.run import describe_replay
from dsv4kv.replay.tiers import Tiers
from dsv4kv.runs.parts import ReplayTiers
from dsv4kv.traces.request import Request
from tests.engines.test_host import CHUNKS, PROMPTS
from tests.examples import examples
from tests.replay.scenes import LONG, SHORT, random_requests, replay, request, small_config

MIB = 2**20
WRITES = ("write_through", "write_through_selective", "write_back")
STRATEGIES = ("full", "zero", "ends", "ends+junctions", "periodic:256")

CHOICES: dict[str, tuple[Any, ...]] = {
    "cache__num_blocks": (16, 24, 40),
    "cache__num_checkpoints": (0, 2, 6),
    "scheduler__step_tokens": (128, 512),
    "prefix__strategy": STRATEGIES,
    "prefix__defer": (True, False),
    "tiers__host__write": WRITES,
    "tiers__host__admission": (1, 1, 2),
    "tiers__host__latency_us": (0, 1000),
    "tiers__host__parallel": (1, 4),
    "tiers__host__read_gbps": (0.05, 50),
    "tiers__host__write_gbps": (0.01, 50),
    "tiers__compare": (True, False),
    "tiers__prefetch": ("best_effort", "wait_complete", "timeout"),
    "tiers__prefetch_tokens": (1, 256),
    "tiers__prefetch_share": (0.1, 0.5, 1.0),
    "tiers__disk__write": WRITES,
}
HOSTS: tuple[dict[str, Any], ...] = (
    {"tiers__host__ratio": 0.3},
    {"tiers__host__ratio": 3},
    {"tiers__host__capacity_bytes": MIB},
    {"tiers__host__capacity_bytes": 100 * MIB},
)
DISKS: tuple[dict[str, Any], ...] = (
    {},
    {"tiers__disk__capacity_bytes": 2 * MIB, "tiers__disk__read_gbps": 0.001},
    {"tiers__disk__capacity_bytes": 100 * MIB},
)


def check_served(requests: Sequence[Request], **chosen: Any) -> None:
    """Everybody is served, nothing stays held, and tiers hold and gave what they say."""
    made = build_replay(small_config(**chosen), requests)
    made.scheduler.run()
    cache, tiers = made.scheduler.cache, made.tiers
    assert made.outcome.finished + made.outcome.rejected.total() == len(requests)
    assert (cache.private, cache.shared, made.scheduler.loading) == (0, 0, [])
    assert isinstance(tiers, Tiers)
    assert not tiers._on_the_way
    assert not tiers._fetches
    describe(made)  # restored and lost tokens add up, of each tier and of all
    for tier in tiers.tiers:
        items, rooms = tier._items, tier._rooms
        held = sum(item.size_bytes for item in items.values())
        assert held == sum(room.used_bytes for room in rooms) <= tier.peak_bytes
        assert all(room.used_bytes <= room.capacity_bytes for room in rooms)
        parents = Counter(item.parent for item in items.values() if item.parent is not None)
        assert parents == tier._children


@examples(60)
@given(
    seed=st.integers(0, 10**6),
    chosen=st.fixed_dictionaries({n: st.sampled_from(v) for n, v in CHOICES.items()}),
    host=st.sampled_from(HOSTS),
    disk=st.sampled_from(DISKS),
)
def test_tiers_hold_and_give_what_they_say(
    seed: int, chosen: dict[str, Any], host: dict[str, Any], disk: dict[str, Any]
) -> None:
    requests = random_requests(seed, 24, 8, LONG if seed % 2 else SHORT)
    check_served(requests, **chosen, **host, **disk)


RULES: tuple[dict[str, Any], ...] = (
    {"prefix__rule": "vllm"},
    {"prefix__rule": "sglang"},
    {"prefix__rule": "vllm-v4:dense"},
    {"prefix__rule": "vllm-v4:semantic"},
    {"prefix__rule": "vllm-v4:semantic", "tiers__retention_tokens": 512},
    {"prefix__rule": "sglang-v4:tail"},
    {"prefix__rule": "sglang-v4:dense"},
    {"prefix__rule": "vllm-v4:semantic", "tiers__layout": "lmcache"},
    {"prefix__rule": "vllm-v4:dense", "tiers__layout": "lmcache", "tiers__chunk_tokens": 512},
)
DENSE, LMCACHE = {"prefix__rule": "vllm-v4:dense"}, {"tiers__layout": "lmcache"}
TWICE, GB = {"tiers__host__ratio": 2}, {"tiers__host__capacity_bytes": 10**9}
VAST: dict[str, Any] = {"tiers__host__capacity_bytes": 10**13}
ENGINE_BLOCKS = {"vllm": 10, "sglang": 10, "vllm-v4": 200, "sglang-v4": 130}


LACKING = {"write": "write_through", "more": 0, "ratio": 4, "disk": False, "slow": False}
"""A request takes the last pages while it waits for the host, and the others decode on."""


@examples(50)
@given(
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(RULES),
    write=st.sampled_from(WRITES),
    more=st.sampled_from([0, 20, 100]),
    ratio=st.sampled_from([0.3, 1, 4]),
    disk=st.booleans(),
    slow=st.booleans(),
)
@example(seed=957, rule={"prefix__rule": "sglang-v4:dense"}, **LACKING)
@example(seed=499997, rule={"prefix__rule": "sglang-v4:tail"}, **LACKING)
@example(seed=0, rule={"prefix__rule": "vllm-v4:dense"}, **LACKING)  # held windows before the last
def test_tiers_of_engines_hold_and_give_what_they_say(
    seed: int, rule: dict[str, Any], write: str, more: int, ratio: float, disk: bool, slow: bool
) -> None:
    requests = random_requests(seed, 60, 8, LONG if seed % 2 else SHORT, block=256)
    family = str(rule["prefix__rule"]).partition(":")[0]
    assume(write != "write_back" or family.startswith("sglang"))
    chosen = rule | {"scheduler__step_tokens": 256, "tiers__host__write": write}
    chosen["cache__num_blocks"] = ENGINE_BLOCKS[family] + more
    chosen |= {"tiers__host__read_gbps": 0.5} if slow else {}
    by_bytes = {"tiers__host__capacity_bytes": int(ratio * 100 * MIB)}
    chosen |= by_bytes if "tiers__layout" in rule else {"tiers__host__ratio": ratio}
    chosen |= {"tiers__disk__capacity_bytes": 200 * MIB} if disk else {}
    check_served(requests, **chosen)


@pytest.mark.parametrize(
    ("chosen", "tier", "reason"),
    [
        ({"tiers__prefetch": "best_effort"}, "disk", "prefetch_timeout"),
        ({"tiers__prefetch_tokens": 10**6}, "disk", "too_short"),
        ({"tiers__prefetch_share": 0.01}, "disk", "prefetch_limit"),
        ({"tiers__disk__write_gbps": 1e-6}, "disk", "not_written"),
        ({"tiers__disk__capacity_bytes": MIB // 8}, "disk", "evicted"),
        ({"tiers__load_tokens": 10**6}, "host", "too_short"),
    ],
)
def test_what_is_not_brought_back_is_lost_at_the_tier_that_could_have_given_it(
    chosen: dict[str, Any], tier: str, reason: str
) -> None:
    """A prompt comes again when the GPU and the host have others."""
    others = [request(range(100 * n, 100 * n + 8), output=1, at=5 * n) for n in range(1, 6)]
    requests = [request(range(1, 8), output=1), *others, request(range(1, 8), output=1, at=50)]
    settings: dict[str, Any] = {
        "cache__num_blocks": 16,
        "prefix__strategy": "zero",
        "tiers__host__capacity_bytes": MIB // 4,
        "tiers__disk__capacity_bytes": 100 * MIB,
        "tiers__compare": False,
        "tiers__prefetch": "wait_complete",
        "tiers__prefetch_share": 1.0,
    }
    found = describe(replay(requests, **settings | chosen))
    (at,) = (each for each in found.tiers if each.name == tier)
    assert set(at.lost_tokens) == {reason}
    assert at.lost_tokens == found.lost_tokens
    assert not describe(replay(requests, **settings)).lost_tokens


def describe(made: Replay) -> ReplayTiers:
    found = describe_replay(made).tiers
    assert found
    return found


LMCACHE_CHUNK = -(-(256 * 15_401 // 4 + 15_420_416) // 4096) * 4096


@pytest.mark.parametrize(
    ("rule", "tokens", "chosen", "written_bytes"),
    [
        # chunks that vLLM's own mask keeps
        *(
            (f"vllm-v4:{rule}", n, {"tiers__retention_tokens": retention} | VAST,
             CHUNKS[every][PROMPTS.index(n)] * 1_003_520)
            for rule, retention, every in (("dense", None, None), ("semantic", None, 0),
                                           ("4096", None, 4096), ("semantic", 32_768, 32_768))
            for n in PROMPTS[:3]
        ),
        ("vllm-v4:semantic", 8192, LMCACHE | VAST, 32 * LMCACHE_CHUNK),
        # two chunks of 8,192 tokens: the window at the end of each, or of every page
        ("sglang-v4:tail", 16_384, {"tiers__host__ratio": 6}, 64 * 998_208 + 2 * 8_160_000),
        ("sglang-v4:dense", 16_384, {"tiers__host__ratio": 6}, 64 * 998_208 + 64 * 8_160_000),
        ("sglang", 16_384, {"tiers__host__ratio": 6}, 64 * 998_208),
    ],
)  # fmt: skip
def test_a_prompt_leaves_what_its_engine_stores(
    rule: str, tokens: int, chosen: dict[str, Any], written_bytes: int
) -> None:
    """One prompt of a whole model."""
    asked = {"model__layers": None, "cache__num_blocks": 20_000, "prefix__rule": rule}
    asked["scheduler__step_tokens"] = 8192
    prompt = request(range(1, tokens // 256 + 1), block=256)
    (host,) = describe(replay([prompt], **asked | chosen)).tiers
    assert host.written_bytes == host.peak_bytes == written_bytes
    if "tiers__host__ratio" in chosen:
        assert host.capacity_bytes == 6 * 20_000 * 998_208
        assert host.tail_capacity_bytes == (None if rule == "sglang" else 6 * 2_000 * 8_160_000)
    else:
        assert host.useful_bytes == tokens * 15_401 // 4


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"tiers__host__capacity_bytes": 1000}, "one object of context takes"),
        (GB | TWICE, "capacity_bytes and ratio both size the tier: give one"),
        (TWICE | LMCACHE, "tiers.layout lmcache goes with rules of vLLM, not with ideal"),
        (TWICE | {"tiers__retention_tokens": 0}, "goes with vllm-v4 rules, not with ideal"),
        (GB | {"prefix__rule": "sglang-v4:tail"}, "only by --hicache-ratio"),
        (TWICE | DENSE | LMCACHE | {"tiers__chunk_tokens": 512}, "give tiers.host.capacity_bytes"),
        (TWICE | DENSE | {"tiers__host__write": "write_back"}, "not when they are evicted"),
        (TWICE | DENSE | {"tiers__retention_tokens": 100}, "a multiple of its block"),
    ],
)
def test_tiers_that_there_are_not_are_refused(chosen: dict[str, Any], sentence: str) -> None:
    block = 256 if "prefix__rule" in chosen else 128
    with pytest.raises(ConfigError, match=sentence):
        replay([request([1, 2], block=block)], **chosen | {"cache__num_blocks": 600})
