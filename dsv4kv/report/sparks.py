"""Small pictures of characters, for a terminal: bars, and the shape of samples."""

from collections.abc import Sequence

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


def is_picture(text: str) -> bool:
    """Whether a text is made of nothing but what pictures are made of."""
    return set(text) <= set(_HEIGHTS + _EIGHTHS)


def spark_bar(share: float, width: int) -> str:
    """A bar of at most ``width`` characters, to an eighth of one; above 1 it is as 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return (_FULL * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)
