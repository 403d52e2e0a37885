"""The fixed part of a compressor: what turns a group of tokens into one entry."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.rope import inverse_frequencies
from dsv4kv.model.schedule import AttentionType, LayerSpec


@dataclass(frozen=True)
class Compressor:
    """Parameters of one layer's compressor (or of its indexer's).

    Attributes:
        ratio: Tokens per entry, m.
        dim: Channels of an entry, d.
        overlap: Pool the previous group's first half with the current group's second (CSA).
        ape: Position bias of a score, float32[m, d · (2 if overlap else 1)].
        norm_weight: RMSNorm weight, float32[d].
        norm_eps: RMSNorm epsilon.
        inverse_frequencies: RoPE angle per position of each pair, float64[rope_dim / 2].
        hadamard: Rotate the entry by Hadamard(d) / sqrt(d) after RoPE (indexer keys).
    """

    ratio: int
    dim: int
    overlap: bool
    ape: Tensor
    norm_weight: Tensor
    norm_eps: float
    inverse_frequencies: Tensor
    hadamard: bool = False

    @property
    def channels(self) -> int:
        """Channels of kv and score of one token."""
        return self.ape.shape[1]

    @property
    def rows(self) -> int:
        """Tokens that one entry pools."""
        return self.ratio * (2 if self.overlap else 1)

    def to(self, device: torch.device) -> "Compressor":
        """The same compressor with its tensors on another device."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("ape", "norm_weight", "inverse_frequencies")
        }
        return replace(self, **moved)


def random_compressor(
    config: DSV4Config,
    spec: LayerSpec,
    generator: torch.Generator,
    *,
    indexer: bool = False,
    hadamard: bool = False,
) -> Compressor:
    """A compressor with the model's geometry and random weights: a cache bench has no others."""
    overlap = spec.attn is AttentionType.CSA
    dim = config.index_dim if indexer else config.head_dim
    channels = dim * (2 if overlap else 1)
    return Compressor(
        ratio=spec.ratio,
        dim=dim,
        overlap=overlap,
        ape=torch.randn(spec.ratio, channels, generator=generator),
        norm_weight=1 + 0.1 * torch.randn(dim, generator=generator),
        norm_eps=config.norm_eps,
        inverse_frequencies=torch.tensor(
            inverse_frequencies(config, spec.ratio), dtype=torch.float64
        ),
        hadamard=hadamard,
    )
