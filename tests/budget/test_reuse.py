"""Prefixes outside the GPU. Source: arXiv:2606.19348 §3.5.2."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.reuse import persist, prefix_document
from tests.budget.questions import scenario
from tests.engines.sizing.deployments import MILLION, deploy


@pytest.mark.parametrize(
    ("model", "times", "recomputed"), [("v4-flash", 7.95, 5_504), ("v4-pro", 7.88, 7_808)]
)
def test_windows_are_eight_times_the_compressed_kv(
    model: str, times: float, recomputed: int
) -> None:
    """Without them 128 tokens a layer are computed again."""
    full, _, zero = persist(deploy(model), MILLION)
    keys = {"v4-flash": 21, "v4-pro": 30}[model] * MILLION // 4 * 132
    assert round(full.window_bytes / (full.context_bytes - keys), 2) == times
    assert (zero.recompute_tokens, zero.window_bytes, zero.state_bytes) == (recomputed, 0, 0)


def test_a_checkpoint_holds_a_window_and_a_state() -> None:
    _, one, _ = persist(deploy(), 4096, 4096)
    assert one.window_bytes == 128 * 43 * 584
    assert one.state_bytes == 12_206_080  # as published, float32
    assert one.recompute_tokens == 4095
    assert persist(deploy(), 8192, 4096)[1].window_bytes == 2 * one.window_bytes


@pytest.mark.parametrize(
    ("engine", "padded"),
    [
        ("vllm:0.33", Fraction(3_915)),
        ("vllm:0.26", Fraction(16_245, 4)),
        ("sglang:0.5.23", Fraction(15_597, 4)),
    ],
)
def test_a_token_that_leaves_takes_its_pages_padding_along(engine: str, padded: Fraction) -> None:
    found = prefix_document(scenario(engine=engine, gpus="8"), MILLION)
    assert found is not None
    assert found["offloaded_useful_bytes_per_token"] == Fraction(15_401, 4)
    assert found["offloaded_padded_bytes_per_token"] == padded


@given(st.integers(0, 20_000), st.integers(1, 20_000))
def test_less_is_stored_the_more_is_computed_again(tokens: int, period: int) -> None:
    full, some, zero = persist(deploy(), tokens, period)
    assert zero.total_bytes == zero.context_bytes == full.context_bytes == some.context_bytes
    assert zero.window_bytes <= some.window_bytes <= full.window_bytes
    assert full.recompute_tokens == 0
    assert some.recompute_tokens < period
    assert max(zero.recompute_tokens, some.recompute_tokens) <= tokens
