"""What a log's number means."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.logs.explain import Explanation, Waterfall, explain_startup, make_waterfall
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.view.explain import waterfall_page
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33, parsed
from tests.engines.logs.test_recovery import told
from tests.engines.sizing.deployments import GIB, deployments
from tests.examples import examples


def explained(lines: list[str] | tuple[str, ...]) -> Explanation:
    return explain_startup(parsed(lines))[0]


def test_numbers_of_no_known_rules_without_a_model_are_not_explained() -> None:
    """They may be of any model."""
    strange = [line.replace("1.11x", "7.11x") for line in VLLM_0_26[3:]]
    with pytest.raises(ConfigError, match="not understood: its numbers follow from no known"):
        explained(strange)


def test_a_size_without_its_length_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="not for how many tokens per request"):
        explained(["GPU KV cache size: 1,009,661 tokens"])


def test_a_log_of_ascend_is_not_explained_by_the_rules_of_cuda() -> None:
    lines = ["Platform plugin ascend is activated", *VLLM_0_26]
    with pytest.raises(ConfigError, match="vLLM on Ascend is vllm-ascend"):
        explained(lines)


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


def on_ranks(*names: str, arguments: str = "") -> list[str]:
    given, printed = SGLANG
    return [
        given.replace("context_", f"tp_size=8, {arguments}context_"),
        *(f"[2026-09-01 10:00:00 {name}] {printed}" for name in names),
    ]


def test_logs_are_compared_by_rank_and_in_total() -> None:
    """Ranks of a replica hold the same tokens, replicas each their own."""
    one = on_ranks(*(f"TP{rank}" for rank in range(8)))
    attention = "dp_size=8, enable_dp_attention=True, "
    each = on_ranks(*(f"DP{rank} TP{rank}" for rank in range(8)), arguments=attention)
    waterfall = between(one, each)
    assert (waterfall.start_ranks, waterfall.end_ranks) == (1, 8)
    assert [step.ranks for step in waterfall.steps] == [1, 1, 1, 8]
    assert waterfall.steps[-1].what == "data-parallel ranks 1 → 8"
    assert adds_up(waterfall)
    sentence, *_, table = waterfall_page(waterfall).answer
    assert "8.0 times as many in total: 54,872,064 on 8 ranks" in str(sentence)
    assert "all ranks" in str(table)
    assert "units per request" not in str(table)


def test_levers_of_sglang_can_be_typed() -> None:
    changes = {change.what for change in explained(SGLANG).changes}
    assert {
        "--swa-full-tokens-ratio 0.05",
        "--max-running-requests 32",
        "1 GiB more memory (--mem-fraction-static)",
        "SGLANG_OPT_USE_ONLINE_COMPRESS=1 (changes numerics)",
    } <= changes


def test_levers_of_vllm_can_be_typed() -> None:
    assert {
        "--max-num-batched-tokens 1024 (2,048 tokens in flight)",
        "--max-model-len 131072",
        "1 GiB more memory (--gpu-memory-utilization)",
        "--attention-config '{\"use_fp4_indexer_cache\": true}' (changes numerics)",
    } <= {change.what for change in explained(VLLM_0_33).changes}


def test_a_limit_of_requests_that_binds_is_raised_and_never_lowered() -> None:
    short = [line.replace("=1048576", "=9472") for line in SGLANG]
    found = explained(short)
    assert found.fits[-1].requests == 64 < found.fits[-1].held
    first, *others = found.changes
    assert first.requests is not None
    assert 64 < first.requests < found.fits[-1].held  # every one has states, one is in prefill
    assert first.what == f"--max-running-requests {first.requests}"
    assert not [change for change in others if "running-requests" in change.what]


def test_a_log_does_not_differ_from_itself() -> None:
    for lines in (VLLM_0_26, VLLM_0_33, SGLANG):
        assert between(lines, lines).steps == ()
