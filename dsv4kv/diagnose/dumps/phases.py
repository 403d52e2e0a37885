"""RoPE as evidence: at which position a row was rotated.

A row's last channels are turned by its position, pair by pair. Two rows of one content at two
positions differ by one turn, whose angle shows how far apart they are. Rows of one request share a
direction in most models, so that one whose turn is another's stands out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.reading import Bytes
from dsv4kv.model.config import DSV4Config, inverse_frequencies

Pairs = NDArray[np.complex128]

FARTHEST = 2**20
"""Positions that a shift is looked for in, to either side."""

SAME = 0.9
"""Of a turn that explains all of a difference 1; rounding to bf16 leaves 0.999."""

_AGREED = 0.25
"""Rows of random content agree to 1 / √rows; from here on it is a request's own direction."""

_FAST = 0.02
"""Radians per position of the pairs that are looked at: slower ones turn alike everywhere."""

_FAR = 8  # standard deviations
_AT_ONCE = 2**13


@dataclass(frozen=True)
class Turn:
    """How far one row is from another.

    Attributes:
        tokens: Positions, negative for an earlier one.
        share: Of the difference that it explains, 1 for all.
    """

    tokens: int
    share: float


def pairs_of(tail: Bytes) -> Pairs:
    """Pairs of bf16 channels as complex numbers: [n, pairs]."""
    words = np.ascontiguousarray(tail).view(np.uint16).astype(np.uint32) << 16
    values = words.view(np.float32).astype(np.float64)
    return values[:, 0::2] + 1j * values[:, 1::2]


def frequencies(config: DSV4Config, ratio: int) -> NDArray[np.float64]:
    """Radians per position of each pair."""
    return np.array(inverse_frequencies(config, ratio, "float64"))


def explains(first: Pairs, second: Pairs, speeds: NDArray[np.float64], tokens: int) -> float:
    """Share of what is between two rows' pairs [pairs] that a turn by so many positions is."""
    product = np.conj(first) * second
    turned = (np.exp(-1j * tokens * speeds) @ product).real
    return float(turned / max(np.abs(product).sum(), 1e-30))


def shift_between(first: Pairs, second: Pairs, speeds: NDArray[np.float64]) -> Turn | None:
    """The shift that makes one row's pairs [pairs] the other's; None where no shift does."""
    product = np.conj(first) * second
    weight = float(np.abs(product).sum())
    if not weight:
        return None
    best, turns = Turn(0, 0.0), np.exp(-1j * np.arange(_AT_ONCE)[:, None] * speeds)
    for start in range(-FARTHEST, FARTHEST, _AT_ONCE):
        found = (turns @ (product * np.exp(-1j * start * speeds))).real / weight
        place = int(found.argmax())
        if found[place] > best.share:
            best = Turn(start + place, float(found[place]))
    same_size = float(np.abs(np.abs(first) - np.abs(second)).sum() / np.abs(first).sum()) < 0.05
    return best if best.share >= SAME and same_size else None


def odd_phases(
    pairs: Pairs, positions: NDArray[np.int64], speeds: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Rows whose turn is not that of their position: bool[n].

    None where rows share no direction, and nothing follows.
    """
    fast = speeds >= _FAST
    still = pairs[:, fast] * np.exp(-1j * positions[:, None] * speeds[fast])
    unit = still / np.maximum(np.abs(still).sum(axis=1, keepdims=True), 1e-30)
    common = np.median(unit.real, axis=0) + 1j * np.median(unit.imag, axis=0)
    size = np.linalg.norm(unit, axis=1)
    along = (unit @ np.conj(common)).real / np.maximum(size * np.linalg.norm(common), 1e-30)
    usual = float(np.median(along))
    spread = 1.4826 * float(np.median(np.abs(along - usual)))
    if usual < max(_AGREED, 4 / np.sqrt(len(pairs)), 4 * spread):
        return None
    return np.asarray(along < max(usual / 2, usual - _FAR * spread))
