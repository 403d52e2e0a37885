"""Frequencies of RoPE, as compressors get them: plain, or stretched by YaRN."""

import math

import pytest
import torch

from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.presets import load_model
from tests.ops.samples import full_size_compressor

CONFIG = load_model("v4-flash")
PLAIN = [160_000 ** (-i / 32) for i in range(32)]


def _rotations(frequency: float) -> float:
    """Turns within the original context of 65,536 tokens."""
    return 65_536 * frequency / (2 * math.pi)


def test_layers_without_compression_rotate_plainly_with_theta_10000() -> None:
    expected = [10_000 ** (-i / 32) for i in range(32)]
    assert inverse_frequencies(CONFIG, 0, "float64") == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("ratio", [4, 128])
def test_pairs_of_more_than_32_rotations_keep_their_frequency(ratio: int) -> None:
    fast = [i for i in range(32) if _rotations(PLAIN[i]) > 32]
    found = inverse_frequencies(CONFIG, ratio, "float64")
    assert fast == list(range(16))
    assert [found[i] for i in fast] == pytest.approx([PLAIN[i] for i in fast], rel=1e-14)


@pytest.mark.parametrize("ratio", [4, 128])
def test_pairs_of_less_than_one_rotation_are_divided_by_16(ratio: int) -> None:
    slow = [i for i in range(32) if _rotations(PLAIN[i]) < 1]
    found = inverse_frequencies(CONFIG, ratio, "float64")
    assert slow == list(range(25, 32))
    assert [found[i] for i in slow] == pytest.approx([PLAIN[i] / 16 for i in slow], rel=1e-14)


@pytest.mark.parametrize("ratio", [4, 128])
def test_pairs_in_between_are_blended_ever_slower(ratio: int) -> None:
    found = inverse_frequencies(CONFIG, ratio, "float64")
    shares = [(1 - found[i] / PLAIN[i]) / (1 - 1 / 16) for i in range(15, 26)]
    assert shares == pytest.approx([k / 10 for k in range(11)], abs=1e-12)


@pytest.mark.parametrize("kind", ["csa", "hca", "indexer"])
def test_every_compressor_of_a_layer_rotates_its_last_64_channels(kind: str) -> None:
    found = full_size_compressor(kind, "float64").rope
    expected = torch.tensor(inverse_frequencies(CONFIG, 4, "float64"), dtype=torch.float64)
    assert torch.equal(found, expected)
