"""What fits follows from one forward function, and every inverse question agrees with it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4kv.engines.names import ENGINES as KNOWN
from dsv4kv.sizing.fit import (
    available_bytes,
    costs_of,
    fewest_gpus,
    fits,
    free_bytes,
    logits_bytes,
    max_concurrency,
    max_context,
    tightest_free_bytes,
    transient_bytes,
    use_of,
)
from dsv4kv.sizing.scenario import Scenario, resolve
from tests.examples import examples
from tests.sizing.questions import ENGINES, GIB, ask, scenario, scenarios

CONTEXTS = st.integers(1, 2**20)
LOADS = st.integers(1, 3000)
FEW = examples(60)


@FEW
@given(scenarios(), CONTEXTS, CONTEXTS, LOADS)
def test_a_longer_context_never_leaves_more(
    found: Scenario, one: int, other: int, load: int
) -> None:
    short, long = sorted((one, other))
    left = [tightest_free_bytes(found, tokens, load) for tokens in (long, short)]
    assert left == sorted(left)


@FEW
@given(scenarios(), CONTEXTS, LOADS, LOADS)
def test_more_requests_never_leave_more(
    found: Scenario, tokens: int, one: int, other: int
) -> None:
    few, many = sorted((one, other))
    left = [tightest_free_bytes(found, tokens, load) for load in (many, few)]
    assert left == sorted(left)


@FEW
@given(ENGINES, st.integers(20, 400), st.integers(20, 400), CONTEXTS)
def test_more_memory_never_holds_fewer_requests(
    engine: str, one: int, other: int, tokens: int
) -> None:
    """Of equal chunks: from 160 GiB on the engines take larger ones unasked, which cost more."""
    held = [
        max_concurrency(
            scenario(engine=engine, hbm=f"{size}GiB", gpus="8", step_tokens="8192"), tokens
        )
        for size in sorted((one, other))
    ]
    assert held == sorted(held)


@FEW
@given(scenarios(), CONTEXTS)
def test_the_most_requests_fit_and_one_more_a_replica_does_not(
    found: Scenario, tokens: int
) -> None:
    most, replicas = max_concurrency(found, tokens), found.layout.dp
    assert most % replicas == 0
    assert most == 0 or fits(found, tokens, most)
    assert not fits(found, tokens, most + 1)


@FEW
@given(scenarios(), LOADS)
def test_the_longest_context_fits_and_one_token_more_does_not(found: Scenario, load: int) -> None:
    longest, limit = max_context(found, load), found.config.max_context_tokens
    assert 0 <= longest <= limit
    assert longest == 0 or fits(found, longest, load)
    assert longest == limit or not fits(found, longest + 1, load)


@FEW
@given(scenarios(), CONTEXTS)
def test_the_two_inverses_agree(found: Scenario, tokens: int) -> None:
    most = max_concurrency(found, tokens)
    assume(most)
    assert max_context(found, most) >= tokens
    assert max_context(found, most + 1) < tokens


@FEW
@given(ENGINES, st.sampled_from(["h100", "h200"]), CONTEXTS, LOADS)
def test_the_fewest_gpus_are_enough_and_the_next_fewer_are_not(
    engine: str, gpu: str, tokens: int, load: int
) -> None:
    candidates = resolve(ask(engine=engine, gpu=gpu))
    found = fewest_gpus(candidates, tokens, load)
    enough = [each for each in candidates if fits(each, tokens, load)]
    assert found == (enough[0] if enough else None)


@FEW
@given(scenarios(), CONTEXTS, LOADS)
def test_the_parts_of_a_gpu_add_up_and_none_is_negative(
    found: Scenario, tokens: int, load: int
) -> None:
    use = use_of(found, tokens, load)
    parts = (use.weights, use.reserve, use.transient, use.shared, use.fixed, use.in_flight)
    assert all(part >= 0 for part in (*parts, use.tokens, use.lost))
    assert sum(parts) + use.tokens + use.lost + use.free == use.budget
    assert use.free == free_bytes(found, use.stage, tokens, load)
    assert use.free == min(
        free_bytes(found, stage, tokens, load) for stage in range(found.layout.pp)
    )


@pytest.mark.parametrize("tokens", [1, 3, 4, 127, 128, 129, 4095])
@pytest.mark.parametrize("engine", KNOWN)
def test_a_short_request_holds_all_that_it_costs(engine: str, tokens: int) -> None:
    found = scenario(gpus="8", engine=engine)
    use, costs = use_of(found, tokens, 3), costs_of(found, 0, tokens, 3)
    assert use.fixed == 3 * sum(cost.fixed_bytes for cost in costs)
    assert use.tokens == int(3 * tokens * sum(cost.marginal_bytes for cost in costs))
    assert use.lost >= 0


@given(st.integers(1, 8192), st.integers(1, 64))
def test_decoding_requests_of_whole_blocks_lose_only_padding(blocks: int, load: int) -> None:
    found = scenario(gpus="1", hbm="2TiB")
    use = use_of(found, 128 * blocks, load)
    padding = sum(cost.padding_bytes for cost in costs_of(found, 0, 128 * blocks, load))
    assert use.lost == load * 128 * blocks * padding


def test_replicas_share_the_requests_and_ranks_of_one_do_not() -> None:
    """DP8 holds an eighth of the requests on every GPU; the one KV head is copied under TP8."""
    uses = [use_of(scenario(gpus="8", tp=tp), 131_072, 64) for tp in ("1", "8")]
    assert uses[1].cache == 8 * uses[0].cache


def test_one_chunk_is_in_flight_at_a_time() -> None:
    found = scenario(gpus="8", engine="vllm:0.33")
    one, many = (use_of(found, 131_072, load) for load in (1, 100))
    assert one.in_flight == many.in_flight > 0
    assert many.fixed + many.tokens + many.lost == 100 * (one.fixed + one.tokens + one.lost)


def test_a_model_with_a_key_per_token_has_four_times_the_logits() -> None:
    flat, csa = scenario(model="v3.2", gpus="8"), scenario(gpus="8")
    assert transient_bytes(flat, 2**14) == 4 * transient_bytes(csa, 2**14) > 0


@pytest.mark.parametrize(
    ("engine", "logits", "charged"),
    [
        ("dsv4kv", 2**29, 2**29),  # a chunk is scored in pieces, as vLLM does
        ("vllm:0.33", 2**29, 2**29),  # profiled at its bound before the cache is sized
        ("vllm:0.22", 2**29, 2**29),
        ("sglang:0.5.23", 3_105_549_293, 0),  # a fifth of 1 - 0.897 of 143,771 MiB, from these
        ("sglang:0.5.20", 2**33, 0),  # 8,192 rows x 262,144 keys x 4 B: 8 GiB of 14.5 GiB
        ("trtllm", 2**29, 2**29),
    ],
)
def test_logits_of_a_chunk_at_a_million_tokens_are_as_large_as_the_engine_lets_them(
    engine: str, logits: int, charged: int
) -> None:
    """vLLM: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB; SGLang 0.5.21: mqa_logits_utils.py."""
    found = scenario(gpus="8", engine=engine)
    assert logits_bytes(found, 2**20) == logits
    assert transient_bytes(found, 2**20) == charged


def test_vllm_sets_its_bound_aside_whatever_a_step_needs() -> None:
    found = scenario(gpus="8", engine="vllm:0.33")
    assert logits_bytes(found, 4096) == logits_bytes(found, 2**20) == 2**29
    given = scenario(gpus="8", engine="vllm:0.33", logits_limit="256MiB")
    assert logits_bytes(given, 2**20) == 2**28


@pytest.mark.parametrize(
    ("version", "gpu", "bound_gib"),
    [
        ("0.5.21", "b200", 2),
        ("0.5.22", "b200", 2),
        ("0.5.23", "b200", 1),
        ("0.5.23", "rtx-pro-6000", 2),
        ("0.5.22", "h200", 3),
        ("0.5.23", "h200", 3),
    ],
)
def test_the_scores_of_v41_are_bounded_by_version_and_gpu_in_sglang(
    version: str, gpu: str, bound_gib: int
) -> None:
    """2 GiB with DeepGEMM, of which bf16 fills half; in torch three times 1 GiB is live."""
    found = scenario(gpu=gpu, gpus="8", model="v4.1-flash", engine=f"sglang:{version}")
    assert found.settings.logits_limit == bound_gib * GIB


def test_replicas_that_are_servers_have_limits_of_their_own() -> None:
    """SGLang divides its limits among the ranks of data-parallel attention alone."""
    texts = {"engine": "sglang", "gpus": "8", "tp": "4", "dp": "2", "ep": "4"}
    ranks, servers = (scenario(**texts, dp_attention=how) for how in ("on", "off"))
    assert (ranks.settings.request_limit, ranks.settings.step_tokens) == (128, 4096)
    assert (servers.settings.request_limit, servers.settings.step_tokens) == (256, 8192)


def test_memory_or_blocks_for_kv_replace_what_is_left() -> None:
    """7,236 blocks of 1,039,680 B are the 7.01 GiB of a published log of vLLM 0.26."""
    texts = {"gpus": "2", "engine": "vllm:0.26", "draft_layers": "1"}
    for told in ({"kv_blocks": "7236"}, {"kv_memory": "7.01GiB"}):
        found = scenario(**texts, **told)
        available = available_bytes(found, 0, 912_128)
        assert available // 1_039_680 in (7_236, 7_239)
        most = found.engine.capacity(found.deployment(0, 912_128), available)
        assert most.units == available // 1_039_680
    assert found.settings.assumed.get("memory_fraction") is None


def test_sglang_takes_full_tokens_at_most() -> None:
    texts = {"gpus": "8", "engine": "sglang:0.5.23"}
    left = available_bytes(scenario(**texts), 0, 2**20)
    few, many = (scenario(**texts, kv_blocks=count) for count in ("1M", "1000M"))
    assert available_bytes(few, 0, 2**20) < available_bytes(many, 0, 2**20) == left


def test_logits_without_bound_that_find_no_room_beside_the_share_are_charged() -> None:
    found = scenario(gpus="8", engine="sglang:0.5.20", memory_fraction="0.97")
    use = use_of(found, 2**20, 1)
    assert use.transient == 2**33 - found.spare_bytes > 0
    assert use.headroom == found.spare_bytes


def test_a_model_without_indexer_has_no_logits() -> None:
    assert transient_bytes(scenario(model="gqa8", weights="1GiB", gpus="8"), 2**17) == 0


def test_the_reserve_and_the_share_kept_spare_are_left_alone() -> None:
    base = tightest_free_bytes(scenario(gpus="8"), 4096, 1)
    assert tightest_free_bytes(scenario(gpus="8", reserve="5GiB"), 4096, 1) == base - GIB
    half = scenario(gpus="8", memory_fraction="0.5")
    assert tightest_free_bytes(half, 4096, 1) == base - (
        scenario(gpus="8").budget_bytes - half.budget_bytes
    )


def test_the_tightest_stage_decides() -> None:
    """Of two stages the one with the output head, more CSA layers or drafts may be the fuller."""
    found = scenario(tp="1", dp="1", pp="2", draft_layers="3")
    assert use_of(found, 2**20, 4).stage == 1


def test_what_an_engine_holds_anyway_is_held_once() -> None:
    """SGLang's pool of windows is as large as the requests that may run, used or not."""
    found = scenario(gpus="8", tp="1", engine="sglang:0.5.23")
    use = use_of(found, 131_072, 80)
    assert use.shared == found.engine.shared_bytes(found.deployment(0, 131_072, 10)) > 0
