"""Small pictures of characters, for a terminal: bars, and the shape of samples."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from dsv4kv.report.histogram import make_bins

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


def is_picture(text: str) -> bool:
    """Whether a text is made of nothing but what pictures are made of."""
    return set(text) <= set(_HEIGHTS + _EIGHTHS)


def spark_bar(share: float, width: int) -> str:
    """A bar of at most ``width`` characters, to an eighth of one; above 1 it is as 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return (_FULL * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)
