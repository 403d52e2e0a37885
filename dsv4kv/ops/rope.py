"""How the last channels of an entry are rotated: a table as engines have it, or frequencies.

Engines form position × frequency in float32 and keep cosines and sines in a float32 table of all
positions, 256 MiB at 2^20. An entry is rotated at its group's first position, so a row for each
group is enough: 64 MiB for a ratio of 4, 2 MiB for 128; all layers of a ratio share one.
"""

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.rope import Precision, inverse_frequencies


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
