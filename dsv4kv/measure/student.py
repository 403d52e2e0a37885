"""Student's t: how far the mean of few values may lie from the truth."""

import math


def t_quantile(tail: float, freedom: int) -> float:
    """What |t| exceeds on one side with probability ``tail``, above 0 and below 0.5.

    By bisection of the closed form for whole degrees of freedom (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        inside = _share_inside(angle, freedom)
        low, high = (angle, high) if (1 - inside) / 2 > tail else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _share_inside(angle: float, freedom: int) -> float:
    """Probability of |t| below sqrt(freedom) · tan(angle)."""
    cosine, odd = math.cos(angle), freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
