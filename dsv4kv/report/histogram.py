"""Samples in bins: the shape that a page draws and a terminal hints at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FAR_APART = 4.0  # from here on a linear axis crowds the small values
_ROOM = 0.03  # beside the first and the last sample


@dataclass(frozen=True)
class Bins:
    """Edges of bins; on a logarithmic scale where the samples lie far apart."""

    edges: NDArray[np.float64]
    is_log: bool

    def count(self, samples: Sequence[float]) -> NDArray[np.int64]:
        """How many samples lie in each bin."""
        return np.histogram(samples, self.edges)[0]


def make_bins(samples: Sequence[float], count: int) -> Bins:
    """Bins of equal width that hold all samples, at least one."""
    low, high = float(min(samples)), float(max(samples))
    if are_far_apart(samples):
        edges = np.geomspace(low / (1 + _ROOM), high * (1 + _ROOM), count + 1)
        return Bins(edges, is_log=True)
    room = (high - low) * _ROOM or high * _ROOM or 1.0
    return Bins(np.linspace(low - room, high + room, count + 1), is_log=False)


def are_far_apart(values: Sequence[float]) -> bool:
    """Whether values want a logarithmic axis: all positive, the largest far from the smallest."""
    return min(values) > 0 and max(values) / min(values) > _FAR_APART
