"""What a log's number means."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.logs.explain import Explanation, Waterfall, explain_startup, make_waterfall
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33, parsed
from tests.engines.logs.test_recovery import told
from tests.engines.sizing.deployments import GIB, deployments
from tests.examples import examples


def explained(lines: list[str] | tuple[str, ...]) -> Explanation:
    return explain_startup(parsed(lines))[0]


def test_a_request_is_split_into_context_reserve_and_steady_blocks() -> None:
    told = explained(VLLM_0_26)
    split = told.split
    assert (split.context, split.counted) == (912_128 // 256, 6_537)
    assert split.context + split.fixed + split.in_flight == split.counted
    assert split.held == 912_128 // 256 + 30  # a token and a draft in flight
    assert told.printed_tokens == told.shown_tokens == 1_009_661


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


def test_a_refusal_says_what_was_needed_and_what_would_fit() -> None:
    told = explained([*REFUSAL, "vLLM API server version 0.22.0"])
    assert told.printed_tokens is None
    assert told.shown_tokens < 30_000
    assert told.meaning[0].startswith("The start was refused: one request of 30,000 tokens")
    assert any(fit.requests > 0 for fit in told.fits)


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


def test_a_size_without_its_length_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="not for how many tokens per request"):
        explained(["GPU KV cache size: 1,009,661 tokens"])


def test_replicas_that_a_server_has_are_not_advised_again() -> None:
    """SGLang counts tensor-parallel ranks over all replicas: --tp 8 --dp 8 is one rank each."""
    lines = [line.replace("(model_path", "(tp_size=8, dp_size=8, model_path") for line in SGLANG]
    told = explained(lines)
    assert "data parallel" in {each.what for each in told.statements}
    assert not any("--dp-size" in change.what for change in told.changes)


VERSIONS = st.sampled_from(engine_family("vllm"))
LOGS = (
    VLLM_0_26,
    VLLM_0_33,
    REFUSAL,
    SGLANG,
    [line.replace("9,661", "9,000") for line in VLLM_0_26],
)


def between(first: list[str] | tuple[str, ...], second: list[str] | tuple[str, ...]) -> Waterfall:
    return make_waterfall(explain_startup(parsed(first)), explain_startup(parsed(second)))


def adds_up(waterfall: Waterfall) -> bool:
    tokens = waterfall.start_tokens
    for step in waterfall.steps:
        tokens += step.gain_tokens
        if tokens != step.tokens:
            return False
    return tokens == waterfall.end_tokens


def test_the_steps_go_from_one_number_to_the_other() -> None:
    steps = between(VLLM_0_26, VLLM_0_33).steps
    assert [step.what.split()[0] for step in steps] == [
        "rules",
        "draft",
        "longest",
        "tokens",
        "memory",
    ]
    assert [step.tokens for step in steps] == [989_798, 989_798, 72_760, 36_121, 63_859]
    assert steps[0].what == "rules vllm:0.26 → vllm:0.33"
    assert (steps[0].unit_bytes, steps[0].units_per_request) == (1_002_240, 6_917)


@pytest.mark.parametrize("first", LOGS)
@pytest.mark.parametrize("second", LOGS)
def test_gains_add_up_to_the_difference_exactly(first: list[str], second: list[str]) -> None:
    assert adds_up(between(first, second))


@examples(60)
@given(
    VERSIONS, VERSIONS, deployments(), deployments(), st.integers(2 * GIB, 200 * GIB),
    st.integers(2 * GIB, 200 * GIB),
)  # fmt: skip
def test_gains_add_up_whatever_differs(
    old: str, new: str, before: Deployment, after: Deployment, memory: int, later: int
) -> None:
    logs = (told(old, before, memory), told(new, after, later))
    printed = (
        find_engine(old).capacity(before, memory).printed_tokens,
        find_engine(new).capacity(after, later).printed_tokens,
    )
    assume(all(printed))
    waterfall = between(*logs)
    assert (waterfall.start_tokens, waterfall.end_tokens) == printed
    assert adds_up(waterfall)
    assert not [step for step in waterfall.steps if "not explained" in step.what]


def test_a_log_does_not_differ_from_itself() -> None:
    for lines in (VLLM_0_26, VLLM_0_33, SGLANG):
        assert between(lines, lines).steps == ()
