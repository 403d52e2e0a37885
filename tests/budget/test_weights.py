"""Weights follow from config.json, add up to the published counts, and are split by the layout."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.layout import Layout
from dsv4kv.budget.weights import WeightFacts, Weights, derive_weights
from dsv4kv.engines.contract import EVENLY, Loading
from dsv4kv.files import shipped
from dsv4kv.model.presets import load_model

FLASH = load_model("v4-flash")
PRESETS = ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"]


def facts_of(name: str) -> WeightFacts:
    text = (shipped("configs") / "weights" / f"{name}.yaml").read_text(encoding="utf-8")
    return WeightFacts(**yaml.safe_load(text))


def weights_of(name: str) -> Weights:
    return derive_weights(load_model(name), facts_of(name))


@pytest.mark.parametrize(
    ("name", "within"),
    [("v4-flash", 0.002), ("v4-pro", 0.02), ("v4.1-flash", 0.002), ("v3.2", 0.002)],
)
def test_parameters_add_up_to_the_published_count(name: str, within: float) -> None:
    """284B and 1.6T of arXiv:2606.19348, two digits of the latter; 671B of V3.2; V4.1: 552B."""
    assert weights_of(name).parameters == pytest.approx(
        facts_of(name).published_parameters, rel=within
    )


def test_engram_tables_lie_in_host_memory_and_on_no_gpu() -> None:
    """203 GB of a checkpoint of 510,313,353,565 B; vllm#56700 saw 189 GiB of them on GPUs."""
    found = weights_of("v4.1-flash")
    assert found.host_bytes == 768_022_850 * 264
    assert round(found.host_bytes / 2**30) == 189
    drafts = found.drafts(3).dense_bytes + found.drafts(3).expert_bytes
    assert found.total_bytes + found.host_bytes + drafts == pytest.approx(
        510_313_353_565, rel=0.003
    )


def test_ranks_that_cannot_share_experts_evenly_hold_one_more() -> None:
    """256 experts over 24 ranks: 11 on the fullest."""
    weights = weights_of("v4-flash")
    whole = range(len(weights.layers))
    experts = sum(part.expert_bytes for part in weights.layers)
    held = weights.rank_bytes(Layout(dp=24, ep=24), whole, 0)
    assert held == weights.total_bytes - experts + experts * 11 // 256
    assert weights.rank_bytes(Layout(dp=512, ep=512), whole, 0) == (
        weights.total_bytes - experts + experts // 256
    )


@given(st.sampled_from(PRESETS), st.integers(1, 8))
def test_pipeline_stages_hold_one_copy_between_them(name: str, stages: int) -> None:
    weights = weights_of(name)
    size = -(-len(weights.layers) // stages)
    parts = [
        range(start, min(start + size, len(weights.layers)))
        for start in range(0, len(weights.layers), size)
    ]
    held = sum(weights.rank_bytes(Layout(pp=stages), part, 0) for part in parts)
    assert 0 <= held - weights.total_bytes < stages


def test_what_has_no_heads_to_split_by_is_whole_on_every_rank_of_sglang() -> None:
    """Flash at TP8, from SGLang 0.5.15's ``deepseek_v4.py``, ``compressor.py``, ``indexer.py``.

    Layer 2: projections to 1,024 and 512 channels and the indexer's queries in fp8; compressors of
    1,024 and 256 channels for KV and score, the indexer's weights and the router in bf16; 24 mixes
    of 4 streams in fp32, twice.
    """
    weights, tp8 = weights_of("v4-flash"), Layout(tp=8)
    fp8 = 4096 * (1024 + 512) + 1024 * 64 * 128
    bf16 = 4096 * (2 * (1024 + 256) + 64 + 256)
    even, copied = (
        weights.rank_bytes(tp8, range(2, 3), 0, Loading(copies=copies)) for copies in (False, True)
    )
    whole = fp8 + 2 * bf16 + 2 * 24 * 4 * 4096 * 4
    assert copied - even == pytest.approx(whole * 7 / 8, abs=1)
    wide = weights.rank_bytes(tp8, range(2, 3), 0, Loading(widens_output=True))
    assert wide - even == 64 * 512 * 1024 // 8


def test_drafts_have_an_embedding_and_a_head_of_their_own_when_the_cache_is_sized() -> None:
    weights, loading = weights_of("v4-flash"), Loading(draft_heads=True)
    whole, embedding = range(43), 2 * 129_280 * 4096
    for layout, copies in ((Layout(tp=8), 2 / 8), (Layout(dp=8, ep=8), 1 + 1 / 8)):
        held, less = (weights.rank_bytes(layout, whole, 1, each) for each in (loading, EVENLY))
        assert held - less == pytest.approx(copies * embedding, abs=1)
        assert weights.rank_bytes(layout, whole, 0, loading) == weights.rank_bytes(
            layout, whole, 0
        )


def test_parts_of_flash_layers_are_the_matrices_of_its_reference_code() -> None:
    """Sliding-window layer 0, CSA layer 2, HCA layer 3: one FP8 byte a parameter, or two of bf16.

    CSA projects two halves of 512 and 128 channels for KV and score, and has an indexer of 64
    heads; HCA projects one half of 512 channels. Mixes of 4 streams are in fp32.
    """
    query = 4096 * 1024 + 1024 * 64 * 512
    output = 64 * 512 * 1024 + 8 * 1024 * 4096
    window = query + 4096 * 512 + output + 3 * 4096 * 2048  # the shared expert
    window += 2 * 4096 * 256 + 2 * 24 * 4 * 4096 * 4  # the router, and the mixes
    csa = 2 * 2 * 4096 * (2 * 512 + 2 * 128) + 1024 * 64 * 128 + 2 * 4096 * 64
    layers = weights_of("v4-flash").layers
    assert layers[0].dense_bytes == window
    assert layers[2].dense_bytes == window + csa
    assert layers[3].dense_bytes == window + 2 * 2 * 4096 * 512
