"""Objects in as few messages to a server as memory allows."""

from collections.abc import Iterator, Sequence

TRIP_BYTES = 32 << 20  # sent or answered at once: a server keeps as much for every client
_TRIP_NAMES = 1000


def trips(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last, exclusive, of the objects of every message, by their sizes in bytes."""
    start, weight = 0, 0
    for end, size in enumerate(sizes):
        if end > start and (weight + size > TRIP_BYTES or end - start == _TRIP_NAMES):
            yield start, end
            start, weight = end, 0
        weight += size
    if sizes:
        yield start, len(sizes)
