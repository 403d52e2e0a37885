"""The fixed part of a compressor: what turns a group of tokens into one entry.

How the last channels of an entry are rotated: a table as engines have it, or frequencies. Engines
form position × frequency in float32 and keep cosines and sines in a float32 table of all
positions, 256 MiB at 2^20. An entry is rotated at its group's first position, so a row for each
group is enough: 64 MiB for a ratio of 4, 2 MiB for 128; all layers of a ratio share one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config, Precision, inverse_frequencies
from dsv4kv.model.schedule import LayerSpec

_ANY_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class Compressor:
    """Parameters of one layer's compressor (or of its indexer's)."""

    ratio: int  # tokens per entry, m
    dim: int  # channels of an entry, d
    overlap: bool  # pool the previous group's first half with the current group's second (CSA)
    # position bias of a score, float32[m, d · (2 if overlap else 1)]; zeros where a model has none
    # (DeepSeek-V4.1)
    ape: Tensor
    norm_weight: Tensor  # RMSNorm weight, float32[d]
    norm_eps: float  # RMSNorm epsilon
    # rotation of the last channels: float32[groups, rope_dim], for each entry the cosines of its
    # pairs, then their sines; or float64[rope_dim / 2], the angle per position of each pair, in
    # radians
    rope: Tensor
    hadamard: bool = False  # rotate the entry by Hadamard(d) / sqrt(d) after RoPE (indexer keys)
    # what RMSNorm gives is rounded to bf16 before RoPE (DeepSeek-V4.1's latent)
    round_norm: bool = False
    round_rope: bool = True  # what RoPE gives is rounded to bf16 before it is quantised

    @property
    def turns_rounded(self) -> bool:
        """Whether channels are mixed after they were rounded: one that flips moves others."""
        return self.hadamard or self.round_norm

    @property
    def channels(self) -> int:
        """Channels of kv and score of one token."""
        return self.ape.shape[1]

    @property
    def rows(self) -> int:
        """Tokens that one entry pools."""
        return self.ratio * (2 if self.overlap else 1)

    @property
    def rotated_pairs(self) -> int:
        """Pairs of channels that are rotated."""
        return self.rope.shape[1] // 2 if self.has_table else len(self.rope)

    @property
    def has_table(self) -> bool:
        """Whether cosines and sines are looked up."""
        return self.rope.dim() == 2

    @property
    def groups(self) -> int:
        """Entries of one request that can be rotated."""
        return len(self.rope) if self.has_table else _ANY_NUMBER

    def to(self, device: torch.device) -> "Compressor":
        """The same compressor with its tensors on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("ape", "norm_weight", "rope")}
        return replace(self, **moved)


def random_compressor(
    config: DSV4Config,
    spec: LayerSpec,
    generator: torch.Generator,
    *,
    rope: Tensor,
    indexer: bool = False,
    hadamard: bool = False,
) -> Compressor:
    """A compressor with the model's geometry and random weights: a cache bench has no others.

    rope: as ``make_rope`` gives it for the layer's ratio.
    hadamard: not for DeepSeek-V4.1, whose keys no engine rotates.

    Where V4.1 is rounded is vLLM 0.33.0's way: of compressed KV the latent alone
    (fused_compress_quant_cache.py), of keys what RoPE gives as well (indexer_k_store.py). SGLang
    0.5.23 rounds both twice.
    """
    dim = config.index_dim if indexer else config.head_dim
    channels = dim * (2 if spec.overlaps else 1)
    ape = torch.randn(spec.ratio, channels, generator=generator)
    return Compressor(
        ratio=spec.ratio,
        dim=dim,
        overlap=spec.overlaps,
        ape=torch.zeros_like(ape) if spec.is_latent else ape,
        norm_weight=1 + 0.1 * torch.randn(dim, generator=generator),
        norm_eps=config.norm_eps,
        rope=rope,
        hadamard=hadamard and not spec.is_latent,
        round_norm=spec.is_latent,
        round_rope=indexer or not spec.is_latent,
    )


def make_rope(config: DSV4Config, ratio: int, tokens: int, precision: Precision) -> Tensor:
    """What a compressor of a ratio needs to rotate the entries of ``tokens`` positions.

    Returns:
        ``float32``: float32[tokens // ratio, rope_dim], see ``rope_rows``.
        ``float64``: float64[rope_dim / 2], radians per position; serves any position.
    """
    if precision == "float32":
        return rope_rows(config, ratio, torch.arange(0, tokens // ratio * ratio, ratio))
    return torch.tensor(inverse_frequencies(config, ratio, precision), dtype=torch.float64)


def rope_rows(config: DSV4Config, ratio: int, positions: Tensor) -> Tensor:
    """Rows of the engines' table, float32[positions, rope_dim]: cosines of all pairs, then sines.

    Source: vLLM 0.33.0 (``DeepseekV4ScalingRotaryEmbedding``) and SGLang 0.5.23
    (``precompute_freqs_cis``).
    """
    frequencies = torch.tensor(inverse_frequencies(config, ratio, "float32"))
    angles = torch.outer(positions.float(), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)
