"""Rotary frequencies follow the published theta and YaRN numbers (config.json of V4)."""

import math

import pytest

from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.presets import load_model

FLASH = load_model("v4-flash")
PAIRS = range(32)


def test_a_layer_without_compression_rotates_plainly_with_theta_10000() -> None:
    expected = [10_000.0 ** (-i / 32) for i in PAIRS]
    assert inverse_frequencies(FLASH, 0, "float64") == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("ratio", [4, 128])
def test_a_compressed_layer_stretches_slow_pairs_16_times_and_keeps_fast_ones(ratio: int) -> None:
    """YaRN: pairs turning over 32 times in 65,536 positions stay, under once are stretched."""
    found = inverse_frequencies(FLASH, ratio, "float64")
    low, high = (
        64 * math.log(65_536 / (turns * 2 * math.pi)) / (2 * math.log(160_000))
        for turns in (32, 1)
    )
    low, high = math.floor(low), math.ceil(high)
    for i in PAIRS:
        plain = 160_000.0 ** (-i / 32)
        stretched = min(max((i - low) / (high - low), 0), 1)
        expected = plain * (1 - stretched) + plain / 16 * stretched
        assert found[i] == pytest.approx(expected, rel=1e-12)
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(160_000.0 ** (-31 / 32) / 16, rel=1e-12)
