"""How bytes get from a sender's memory into ours: one call, by descriptors."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.wire.frames import READ, Wire

Places = NDArray[np.int64]
"""int64[n, 3]: region, first byte, bytes."""

MOST_PLACES = 2**17
"""Of one frame: 3 MiB."""


class Reader(Protocol):
    """Reads a sender's memory."""

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """Copy stretches of its memory into views of the same lengths, in order.

        Raises:
            StoreUnavailable: Places that it does not have, or nobody is there any more.
        """


class MappedReader:
    """Reads memory that is mapped here: a shared segment, or another cache of this process."""

    def __init__(self, regions: Sequence[memoryview]) -> None:
        """Read these."""
        self._regions = regions

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        for source, target in zip(stretches_of(self._regions, places), into, strict=True):
            target[:] = source


class WireReader:
    """Reads over a connection, whose other end serves its memory."""

    def __init__(self, wire: Wire) -> None:
        """Use a connection that has been greeted."""
        self._wire = wire

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        for first in range(0, len(places), MOST_PLACES):
            part = slice(first, first + MOST_PLACES)
            self._wire.send(READ, [memoryview(places[part].astype("<i8").tobytes())])
            self._wire.receive_into(into[part])


def mapped(segment: memoryview, offsets: Sequence[int], lengths: Sequence[int]) -> MappedReader:
    """A reader of regions of a shared segment; raises ``StoreUnavailable`` where it is shorter."""
    for offset, length in zip(offsets, lengths, strict=True):
        if offset + length > len(segment):
            raise StoreUnavailable(
                f"the sender has {length:,} B at {offset:,} of a segment of {len(segment):,} B: "
                "its manifest is wrong."
            )
    return MappedReader([segment[o : o + n] for o, n in zip(offsets, lengths, strict=True)])


def parse_places(payload: bytes) -> Places:
    """Places of a frame; raises ``StoreUnavailable`` for what are none."""
    if len(payload) % 24:
        raise StoreUnavailable(f"a read of {len(payload):,} B is no list of places.")
    return np.frombuffer(payload, dtype="<i8").reshape(-1, 3)


def stretches_of(regions: Sequence[memoryview], places: Places) -> Iterator[memoryview]:
    """Views of places; raises ``StoreUnavailable`` for those that are in no region."""
    if not len(places):
        return iter(())
    number, start, length = places.T
    known = (number >= 0) & (number < len(regions))
    sizes = np.array([len(region) for region in regions], dtype=np.int64)
    limit = sizes[np.where(known, number, 0)] if len(sizes) else np.zeros_like(start)
    good = known & (start >= 0) & (length >= 0) & (length <= limit) & (start <= limit - length)
    if not good.all():
        bad = places[int(np.argmin(good))].tolist()
        raise StoreUnavailable(f"there are no {bad[2]:,} B at {bad[1]:,} of region {bad[0]:,}.")
    return (regions[i][a : a + n] for i, a, n in places.tolist())
