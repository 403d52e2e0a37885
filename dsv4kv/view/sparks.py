"""Small pictures of characters, for a terminal, and the bins that histograms are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

_FAR_APART = 4.0  # from here on a linear axis crowds the small values
_ROOM = 0.03  # next to the first and the last sample


@dataclass(frozen=True)
class Bins:
    """Edges of bins; on a logarithmic scale where the samples are far apart."""

    edges: NDArray[np.float64]
    is_log: bool

    def count(self, samples: Sequence[float]) -> NDArray[np.int64]:
        """How many samples are in each bin."""
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


_HEIGHTS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


def spark_shape(samples: Sequence[float], width: int) -> str:
    """Samples as a histogram of ``width`` characters; a bin without any is a blank."""
    if not samples:
        return " " * width
    counts = make_bins(samples, width).count(samples)
    most = int(counts.max())
    steps = (-(-int(count) * len(_HEIGHTS) // most) for count in counts)  # one sample is seen
    return "".join(_HEIGHTS[step - 1] if step else " " for step in steps)


def spark_line(values: Sequence[float], width: int) -> str:
    """Values in order, at most ``width`` characters; each is as high as its highest value.

    The highest of all is full, and 0 is a blank.
    """
    most = max(values, default=0)
    count = min(width, len(values))
    ends = [len(values) * n // count for n in range(count + 1)] if count else []
    tops = [max(values[start:end]) for start, end in pairwise(ends)]
    steps = (ceil(top / most * len(_HEIGHTS)) if most else 0 for top in tops)
    return "".join(_HEIGHTS[step - 1] if step else " " for step in steps)


def spark_bar(share: float, width: int) -> str:
    """A bar of at most ``width`` characters, to an eighth of one; above 1 it is as 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return (_FULL * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)
