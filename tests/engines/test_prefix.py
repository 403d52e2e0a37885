"""What a prefix must have cached to be a hit, and how long a hit can be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.names import find_engine
from dsv4kv.engines.rule import Need, Rule
from tests.engines.sizing.deployments import deploy

COUNTS = st.integers(0, 10_000)
V41 = {"model": "v4.1-flash", "indexer": "mxfp4"}


def rule_of(engine: str, asked: dict[str, Any]) -> Rule:
    """``asked``: changes of the usual deployment."""
    return find_engine(engine).rule(deploy(**asked))


STATES = (Need("csa state", 1, 4, 7, 2), Need("hca state", 1, 8, 127, 16))
PAGES = (Need("context", 1, 256), Need("window", 1, 256, 128, 1))
BLOCKS = (Need("context", 1, 128), Need("window", 1, 128, 128, 1), Need("csa state", 1, 128, 8, 1))


@pytest.mark.parametrize(
    ("engine", "asked", "needs", "shortest", "replayed"),
    [
        ("vllm:0.33", {}, (PAGES[0], Need("window", 2, 64, 127, 2), *STATES), 257, 0),
        # a hit gives a block back for the draft, whose group looks one block further
        ("vllm:0.33", {"drafts": 1}, (PAGES[0], Need("window", 2, 64, 127, 3), *STATES), 513, 0),
        # --swa-bounded-replay: a hit of a window or less saves nothing and is not adopted
        ("vllm:0.33", {"model": "v4.1-flash"}, (Need("context", 1, 64),), 193, 128),
        # --no-swa-bounded-replay: seven groups of windows return to the prefix cache, no ring
        ("vllm:0.33", {"model": "v4.1-flash", "bounded_replay": False},
         (Need("context", 1, 64), Need("window", 7, 32, 127, 4)), 65, 0),
        ("sglang:0.5.23", {}, PAGES, 257, 0),
        ("sglang:0.5.23", V41, PAGES, 384, 0),  # no hit covers a prompt's last window
        ("sglang:0.5.23", V41 | {"bounded_replay": False}, PAGES, 257, 0),
        ("sglang:0.5.22", V41, PAGES, 257, 0),
        ("sglang:0.5.23", V41 | {"window_slots": "own", "concurrency": 64}, PAGES[:1], 257, 128),
        ("trtllm", {}, BLOCKS, 129, 0),
        ("dsv4kv", {}, BLOCKS, 129, 0),
        ("vllm", {"model": "v3.2"}, (Need("context", 1, 64),), 65, 0),
        ("sglang", {"model": "v3.2"}, (Need("context", 1, 64),), 65, 0),
        ("dsv4kv", {"model": "v3.2"}, (Need("context", 1, 128),), 129, 0),
    ],
)  # fmt: skip
def test_a_hit_needs_what_the_engine_asks_for(
    engine: str, asked: dict[str, Any], needs: tuple[Need, ...], shortest: int, replayed: int
) -> None:
    """A window of w tokens reads w - 1 before the next one, in whole blocks."""
    rule = rule_of(engine, asked)
    assert rule.needs == needs
    assert rule.replayed_tokens == replayed
    if replayed and rule.block_tokens > replayed:
        shortest = rule.block_tokens + 1
    assert rule.shortest_prompt_tokens == shortest
    assert [rule.hit_tokens(10_000, tokens) > 0 for tokens in (shortest - 1, shortest)] == [
        False,
        True,
    ]


@given(st.sampled_from(["vllm", "sglang", "trtllm", "dsv4kv"]), COUNTS, COUNTS)
def test_a_hit_is_whole_blocks_of_what_is_cached_and_shorter_than_the_prompt(
    engine: str, cached: int, prompt: int
) -> None:
    rule = rule_of(engine, {})
    hit = rule.hit_tokens(cached, prompt)
    assert hit % rule.block_tokens == 0
    assert hit <= cached
    assert hit < prompt or hit == 0
    assert hit + rule.block_tokens > min(cached, prompt - 1)
