"""A model's compressors: their shapes, and that a seed decides their weights."""

import pytest
import torch

from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, LayerSpec
from dsv4kv.ops.compressor import make_rope, random_compressor
from tests.ops.samples import full_size_compressor, generator


@pytest.mark.parametrize(
    ("kind", "ratio", "rows", "dim", "channels"),
    [("csa", 4, 8, 512, 1024), ("hca", 128, 128, 512, 512), ("indexer", 4, 8, 128, 256)],
)
def test_compressor_has_the_models_geometry(
    kind: str, ratio: int, rows: int, dim: int, channels: int
) -> None:
    found = full_size_compressor(kind)
    assert (found.ratio, found.rows, found.dim, found.channels) == (ratio, rows, dim, channels)
    assert found.ape.shape == (ratio, channels)
    assert found.norm_weight.shape == (dim,)
    assert found.norm_eps == 1e-6


def test_equal_seeds_give_equal_compressors() -> None:
    spec, config = LayerSpec(2, AttentionType.CSA, 4, 2), load_model("v4-flash")
    rope = make_rope(config, 4, 64, "float32")
    first, second, other = (
        random_compressor(config, spec, generator(s), rope=rope) for s in (1, 1, 2)
    )
    assert torch.equal(first.ape, second.ape)
    assert torch.equal(first.norm_weight, second.norm_weight)
    assert not torch.equal(first.ape, other.ape)


def test_compressor_moves_to_a_device_and_keeps_the_rest() -> None:
    found = full_size_compressor("indexer").to(torch.device("meta"))
    tensors = (found.ape, found.norm_weight, found.rope)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (found.ratio, found.dim, found.overlap, found.hadamard) == (4, 128, True, True)
