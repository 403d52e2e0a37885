"""Prefixes outside the GPU. Source: arXiv:2606.19348 §3.5.2."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.sizing.reuse import offloaded_token, persistent_bytes
from tests.engines.sizing.deployments import MILLION, deploy


@pytest.mark.parametrize(("model", "expected"), [("v4-flash", 7.95), ("v4-pro", 7.88)])
def test_windows_are_eight_times_the_compressed_kv(model: str, expected: float) -> None:
    deployment = deploy(model)
    full = persistent_bytes(deployment, MILLION, "full")
    keys = {"v4-flash": 21, "v4-pro": 30}[model] * MILLION // 4 * 132
    assert round(full.window_bytes / (full.context_bytes - keys), 2) == expected


@pytest.mark.parametrize(("model", "expected"), [("v4-flash", 5_504), ("v4-pro", 7_808)])
def test_without_windows_128_tokens_a_layer_are_computed_again(model: str, expected: int) -> None:
    stored = persistent_bytes(deploy(model), MILLION, "zero")
    assert stored.recompute_tokens == expected
    assert stored.window_bytes == stored.state_bytes == 0


def test_a_checkpoint_holds_a_window_and_a_state() -> None:
    one = persistent_bytes(deploy(), 4096, "periodic", period_tokens=4096)
    assert one.window_bytes == 128 * 43 * 584
    assert one.state_bytes == 12_206_080  # as published, float32
    assert one.recompute_tokens == 4095
    two = persistent_bytes(deploy(), 8191 + 1, "periodic", period_tokens=4096)
    assert two.window_bytes == 2 * one.window_bytes


@pytest.mark.parametrize(
    ("engine", "useful", "padded"),
    [
        ("vllm:0.33", Fraction(15_401, 4), Fraction(3_915)),
        ("vllm:0.26", Fraction(15_401, 4), Fraction(16_245, 4)),
        ("sglang:0.5.23", Fraction(15_401, 4), Fraction(15_597, 4)),
    ],
)
def test_a_token_that_leaves_takes_its_pages_padding_along(
    engine: str, useful: Fraction, padded: Fraction
) -> None:
    token = offloaded_token(find_engine(engine), deploy())
    assert (token.useful_bytes, token.padded_bytes) == (useful, padded)


@given(st.integers(0, 20_000), st.integers(1, 20_000))
def test_less_is_stored_the_more_is_computed_again(tokens: int, period: int) -> None:
    full = persistent_bytes(deploy(), tokens, "full")
    zero = persistent_bytes(deploy(), tokens, "zero")
    some = persistent_bytes(deploy(), tokens, "periodic", period_tokens=period)
    assert zero.total_bytes == zero.context_bytes == full.context_bytes == some.context_bytes
    assert zero.window_bytes <= some.window_bytes <= full.window_bytes
    assert full.recompute_tokens == 0
    assert some.recompute_tokens < period
    assert max(zero.recompute_tokens, some.recompute_tokens) <= tokens


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"strategy": "half"}, "choose full, periodic, zero"),
        ({"strategy": "periodic"}, "takes a period"),
        ({"strategy": "full", "period_tokens": 5}, "takes a period"),
        ({"strategy": "periodic", "period_tokens": 0}, "at least 1"),
        ({"strategy": "zero", "tokens": -1}, "-1 tokens"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        persistent_bytes(deploy(), **({"tokens": 5} | arguments))  # type: ignore[arg-type]
