"""Rotary frequencies of window entries and of compressed entries."""

import math
import struct
from collections.abc import Callable
from typing import Literal

from dsv4kv.model.config import DSV4Config, Yarn

Precision = Literal["float32", "float64"]
"""What position × frequency is formed in: float32 as engines do, or float64."""


def inverse_frequencies(config: DSV4Config, ratio: int, precision: Precision) -> list[float]:
    """Angle per position of each of the ``rope_dim / 2`` interleaved pairs, in radians.

    Layers without compression (ratio 0) rotate plainly with θ = 10,000; everything in a
    compressed layer, its window included, uses θ = 160,000 with YaRN. Every step is rounded to
    the precision: in float32 the bits are those of the engines, which at position 2^20 decide
    about 0.06 radians.
    Source: DeepSeek-V4 reference inference code and config.json (rope_scaling); vLLM 0.33.0
    (deepseek_scaling_rope.py) and SGLang 0.5.23 (dsv4/rope.py) for the steps.
    """
    theta = config.compress_rope_theta if ratio else config.rope_theta
    to, dim = _ROUNDED[precision], config.rope_dim
    plain = [to(1 / to(theta ** to(2 * i / dim))) for i in range(dim // 2)]
    return _stretch(plain, theta, dim, config.yarn, precision) if ratio else plain


def _stretch(
    plain: list[float], theta: float, dim: int, yarn: Yarn, precision: Precision
) -> list[float]:
    """Divide slow frequencies by the factor, keep fast ones, blend linearly in between."""

    def pair_of(rotations: float) -> float:
        span = yarn.original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(span) / (2 * math.log(theta))

    to = _ROUNDED[precision]
    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
    stretched = []
    for i, frequency in enumerate(plain):
        kept = to(1 - min(max(to((i - low) / max(high - low, 0.001)), 0.0), 1.0))
        slow = to(to(frequency / yarn.factor) * to(1 - kept))
        stretched.append(to(slow + to(frequency * kept)))
    return stretched


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


_ROUNDED: dict[Precision, Callable[[float], float]] = {"float32": _to_float32, "float64": float}
