"""Rotary frequencies of window entries and of compressed entries."""

import math

from dsv4kv.model.config import DSV4Config, Yarn


def inverse_frequencies(config: DSV4Config, ratio: int) -> list[float]:
    """Angle per position of each of the ``rope_dim / 2`` interleaved pairs, in radians.

    Layers without compression (ratio 0) rotate plainly with θ = 10,000; everything in a
    compressed layer, its window included, uses θ = 160,000 with YaRN.
    Source: DeepSeek-V4 reference inference code and config.json (rope_scaling).
    """
    theta = config.compress_rope_theta if ratio else config.rope_theta
    plain = [theta ** (-2 * i / config.rope_dim) for i in range(config.rope_dim // 2)]
    return _stretch(plain, theta, config.rope_dim, config.yarn) if ratio else plain


def _stretch(plain: list[float], theta: float, dim: int, yarn: Yarn) -> list[float]:
    """Divide slow frequencies by the factor, keep fast ones, blend linearly in between."""

    def pair_of(rotations: float) -> float:
        span = yarn.original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(span) / (2 * math.log(theta))

    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
    stretched = []
    for i, frequency in enumerate(plain):
        blend = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        stretched.append(frequency / yarn.factor * blend + frequency * (1 - blend))
    return stretched
