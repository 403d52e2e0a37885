"""What a prefix must have cached to be a hit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.rule import Need, Rule
from dsv4kv.errors import ConfigError
from tests.engines.sizing.deployments import deploy

COUNTS = st.integers(0, 10_000)


def prefix_rule(engine: str, deployment: Deployment) -> Rule:
    return find_engine(engine).rule(deployment)


def test_vllm_wants_the_end_of_every_window_and_state_group() -> None:
    """A window of w tokens reads w - 1 before the next one, in whole blocks."""
    assert prefix_rule("vllm:0.33", deploy()).needs == (
        Need("context", 1, 256),
        Need("window", 2, 64, 127, 2),
        Need("csa state", 1, 4, 7, 2),
        Need("hca state", 1, 8, 127, 16),
    )


def test_with_drafts_vllm_gives_a_block_back_and_looks_one_window_block_further() -> None:
    rule = prefix_rule("vllm:0.33", deploy(drafts=1))
    assert rule.policy.drops
    assert rule.needs[1] == Need("window", 2, 64, 127, 3)
    assert rule.shortest_prompt_tokens == 513
    assert rule.hit_tokens(cached_tokens=1024, prompt_tokens=2000) == 768


@pytest.mark.parametrize(
    ("engine", "block"), [("vllm", 256), ("sglang", 256), ("trtllm", 128), ("dsv4kv", 128)]
)
def test_the_shortest_hit_is_a_block_and_the_last_token_is_computed(
    engine: str, block: int
) -> None:
    rule = prefix_rule(engine, deploy())
    assert rule.block_tokens == block
    assert rule.shortest_prompt_tokens == block + 1
    assert rule.hit_tokens(block, block) == 0
    assert rule.hit_tokens(block, block + 1) == block
    assert rule.hit_tokens(block - 1, 10 * block) == 0


def test_where_a_hit_ends_at_a_block_of_128_no_hca_entry_is_pending() -> None:
    for engine in ("trtllm", "dsv4kv", "sglang"):
        stored = {need.storage for need in prefix_rule(engine, deploy()).needs}
        assert "hca state" not in stored


def test_larger_blocks_make_longer_hits() -> None:
    assert prefix_rule("vllm", deploy(block_tokens=512)).block_tokens == 512
    assert prefix_rule("dsv4kv", deploy(block_tokens=256)).needs[1].blocks == 1


@given(st.sampled_from(["vllm", "sglang", "trtllm", "dsv4kv"]), COUNTS, COUNTS)
def test_a_hit_is_whole_blocks_of_what_is_cached_and_shorter_than_the_prompt(
    engine: str, cached: int, prompt: int
) -> None:
    rule = prefix_rule(engine, deploy())
    hit = rule.hit_tokens(cached, prompt)
    assert hit % rule.block_tokens == 0
    assert hit <= cached
    assert hit < prompt or hit == 0
    longest = min(cached, prompt - 1)
    assert hit + rule.block_tokens > longest


def test_what_cannot_be_is_told_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        prefix_rule("vllm", deploy()).hit_tokens(-1, 5)
    with pytest.raises(ConfigError, match=r"which v4.1-flash is not"):
        prefix_rule("trtllm", deploy("v4.1-flash"))


def test_vllm_keeps_no_window_of_v41_and_computes_128_tokens_of_a_hit_again() -> None:
    """``--swa-bounded-replay``: a hit of a window or less saves nothing and is not adopted."""
    rule = prefix_rule("vllm:0.33", deploy("v4.1-flash"))
    assert rule.needs == (Need("context", 1, 64),)
    assert (rule.replayed_tokens, rule.shortest_prompt_tokens) == (128, 193)
    hits = [rule.hit_tokens(cached, 10_000) for cached in (64, 128, 191, 192, 256)]
    assert hits == [0, 0, 0, 192, 256]


def test_without_its_replay_vllm_asks_for_all_windows_of_v41_and_for_no_ring() -> None:
    """``--no-swa-bounded-replay``: seven groups of windows return to the prefix cache."""
    deployment = replace(deploy("v4.1-flash"), bounded_replay=False)
    rule = prefix_rule("vllm:0.33", deployment)
    assert rule.needs == (Need("context", 1, 64), Need("window", 7, 32, 127, 4))
    assert (rule.replayed_tokens, rule.uncovered_tokens) == (0, 1)
    assert rule.hit_tokens(64, 10_000) == 64


def test_without_its_decoder_replay_sglang_covers_a_prompt_but_for_its_last_token() -> None:
    deployment = deploy("v4.1-flash", indexer="mxfp4")
    rule = prefix_rule("sglang:0.5.23", replace(deployment, bounded_replay=False))
    assert (rule.replayed_tokens, rule.uncovered_tokens) == (0, 1)
    assert [rule.hit_tokens(10_000, prompt) for prompt in (256, 257)] == [0, 256]
    assert prefix_rule("sglang:0.5.22", deployment).uncovered_tokens == 1  # off there


def test_sglang_keeps_windows_of_v41_unless_told_to_replay() -> None:
    rule = prefix_rule("sglang:0.5.23", deploy("v4.1-flash", indexer="mxfp4"))
    assert rule.needs == (Need("context", 1, 256), Need("window", 1, 256, 128, 1))
    assert (rule.replayed_tokens, rule.uncovered_tokens) == (0, 128)
    assert [rule.hit_tokens(10_000, prompt) for prompt in (383, 384)] == [0, 256]


def test_sglangs_encoder_replay_needs_no_window_and_computes_that_of_a_hit_again() -> None:
    deployment = deploy("v4.1-flash", indexer="mxfp4", concurrency=64)
    rule = prefix_rule("sglang:0.5.23", replace(deployment, replays_windows=True))
    assert rule.needs == (Need("context", 1, 256),)
    assert (rule.replayed_tokens, rule.uncovered_tokens) == (128, 1)


@pytest.mark.parametrize(("engine", "block"), [("vllm", 64), ("sglang", 64), ("dsv4kv", 128)])
def test_a_hit_of_v32_needs_its_context_alone(engine: str, block: int) -> None:
    assert prefix_rule(engine, deploy("v3.2")).needs == (Need("context", 1, block),)
