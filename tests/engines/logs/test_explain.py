"""What a log's number means."""

from pathlib import Path

import pytest

from dsv4kv.engines.logs.explain import Explanation, explain_log, explain_startup
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33, parsed
from tests.engines.sizing.deployments import deploy


def explained(lines: list[str] | tuple[str, ...]) -> Explanation:
    return explain_startup(parsed(lines))[0]


def how(explanation: Explanation) -> dict[str, str]:
    return {statement.what: statement.how for statement in explanation.statements}


def test_a_request_is_split_into_context_reserve_and_steady_blocks() -> None:
    told = explained(VLLM_0_26)
    split = told.split
    assert (split.context, split.counted) == (912_128 // 256, 6_537)
    assert split.context + split.fixed + split.in_flight == split.counted
    assert split.held == 912_128 // 256 + 30  # a token and a draft in flight
    assert told.printed_tokens == told.shown_tokens == 1_009_661


def test_the_meaning_says_that_the_number_is_no_capacity() -> None:
    first, second, third = explained(VLLM_0_26).meaning
    assert first == (
        "1,009,661 tokens is not a capacity: vLLM computes it as 7,236 blocks ÷ 6,537 blocks per "
        "request of 912,128 tokens × 912,128."
    )
    assert "workspace for 8,192 tokens in flight" in second
    assert "In steady decode such a request takes 3,593 blocks" in third


def test_what_was_read_is_told_from_what_was_inferred() -> None:
    known = how(explained(VLLM_0_26))
    assert {known[name] for name in ("rules", "model", "draft layers", "indexer")} == {"read"}
    assert known["tokens in flight"] == known["blocks"] == "inferred"
    bare = how(explained(VLLM_0_26[-3:]))
    assert {bare[name] for name in ("rules", "model", "draft layers", "indexer")} == {"inferred"}


def test_configurations_that_read_the_same_are_listed() -> None:
    told = explained(["max_num_batched_tokens=8448", VLLM_0_33[-1]])
    assert len(told.candidates) == 23  # 0.28 and 0.33, two models, 0, 1, 3 drafts, two formats
    assert any("v4-pro, 3 draft layers, indexer mxfp4" in title for title in told.candidates)
    assert explained(VLLM_0_26).candidates == ()


def test_what_really_fits_holds_more_than_is_printed() -> None:
    fits = {fit.context_tokens: fit for fit in explained(VLLM_0_26).fits}
    assert list(fits) == [4096, 32_768, 131_072, 912_128]
    assert fits[912_128].requests == 2  # printed as 1.11
    assert fits[4096].requests == 7_235 // (16 + 30)
    assert fits[4096].tokens == 4096 * fits[4096].requests


def test_changes_are_told_with_their_gain_the_largest_first() -> None:
    changes = explained(VLLM_0_26).changes
    gains = [abs(change.gain_tokens) for change in changes]
    assert gains == sorted(gains, reverse=True)
    told = {change.what.split(" (")[0]: change for change in changes}
    assert told["2,048 tokens in flight"].gain_tokens > 0
    (replicas,) = (
        each for what, each in told.items() if what.startswith("--data-parallel-size 2")
    )
    assert replicas.printed_tokens == 2 * 1_009_661
    assert told["the rules of vllm:0.33"].printed_tokens == 989_798
    assert told["1 GiB more memory"].gain_tokens > 0
    assert all(change.printed_tokens - change.gain_tokens == 1_009_661 for change in changes)


def test_fewer_tokens_in_flight_gain_what_users_found() -> None:
    """A quarter of the chunk multiplies the number, where the reserve rules it (vllm#51041)."""
    lines = [line.replace("912128", "131072") for line in VLLM_0_26[:-2]]
    deployment = deploy(context=131_072, flight=8192, drafts=1)
    lines += find_engine("vllm:0.26").capacity(deployment, 7_236 * 1_039_680).log_lines[1:]
    told = explained(lines)
    small = next(change for change in told.changes if change.what.startswith("2,048"))
    assert small.printed_tokens > 2.5 * (told.printed_tokens or 0)


def test_a_refusal_says_what_was_needed_and_what_would_fit() -> None:
    told = explained([*REFUSAL, "vLLM API server version 0.22.0"])
    assert told.printed_tokens is None
    assert told.shown_tokens < 30_000
    assert told.meaning[0].startswith("The start was refused: one request of 30,000 tokens")
    assert any(fit.requests > 0 for fit in told.fits)


def test_sglangs_number_is_shared_by_all_requests() -> None:
    told = explained(SGLANG)
    assert (told.engine, told.unit) == ("sglang:0.5.20", "full token")
    assert told.printed_tokens == told.units == 6_859_008
    assert told.meaning[0].startswith("6,859,008 full tokens of 7,033.45 B are shared")
    assert told.fixed_bytes == 0  # states of all 64 requests are there from the start
    assert told.meaning[1].endswith("; 335 MiB of states and windows are allocated at start-up.")
    assert any(change.what.startswith("swa_full_tokens_ratio") for change in told.changes)


def test_numbers_of_no_known_rules_are_explained_by_the_nearest_with_a_warning() -> None:
    told = explained([line.replace("1,009,661", "1,009,000") for line in VLLM_0_26])
    assert not told.exact
    assert told.candidates == ()
    assert told.meaning[0].startswith("No known engine version reproduces this log")
    assert told.printed_tokens == 1_009_000


def test_numbers_of_no_known_rules_without_a_model_are_not_explained() -> None:
    """They may be of any model."""
    strange = [line.replace("1.11x", "7.11x") for line in VLLM_0_26[3:]]
    with pytest.raises(ConfigError, match="not understood: its numbers follow from no known"):
        explained(strange)


def test_the_smallest_rank_is_explained_and_the_others_are_shown(tmp_path: Path) -> None:
    line = VLLM_0_33[-1]
    path = tmp_path / "a.log"
    path.write_text(
        f"(EngineCore_DP0 pid=1) {VLLM_0_33[1]}\n"
        f"(EngineCore_DP0 pid=1) {line}\n"
        f"(EngineCore_DP1 pid=2) {line.replace('63,859', '63,854')}\n"
    )
    told = explain_log(path)
    assert told.printed_tokens == 63_854
    assert [(rank.rank, rank.tokens) for rank in told.ranks] == [
        ("EngineCore_DP1", 63_854),
        ("EngineCore_DP0", 63_859),
    ]


def test_a_size_without_its_length_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="not for how many tokens per request"):
        explained(["GPU KV cache size: 1,009,661 tokens"])


def test_replicas_that_a_server_has_are_not_advised_again() -> None:
    """SGLang counts tensor-parallel ranks over all replicas: --tp 8 --dp 8 is one rank each."""
    lines = [line.replace("(model_path", "(tp_size=8, dp_size=8, model_path") for line in SGLANG]
    told = explained(lines)
    assert "data parallel" in how(told)
    assert not any("--dp-size" in change.what for change in told.changes)
