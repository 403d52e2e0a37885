"""What every store can do: objects of bytes by name, many at a time.

A store knows nothing of caches. Names are made of letters, digits and ``.-_/``; an object is
there whole or not at all, under its final name, whatever is killed in between.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""uint8[n], contiguous: a view of somebody's memory, never kept."""

Found = NDArray[np.bool_]
"""bool[n], one for every name that was given."""


class Store(Protocol):
    """Objects by name.

    Every call may be made from several threads. A store that cannot answer at all (a server that
    is gone, a folder that cannot be written) raises ``StoreUnavailable``; nothing hangs for longer
    than its timeout, and the next call tries anew.
    """

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Keep copies under names, in place of what was there; whole when this returns.

        Raises:
            StoreUnavailable: Not all could be kept; those that were are whole.
            StoreFull: There is no room for all; those that were kept are whole.
        """

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """Fill ``into`` with objects; which were there, whole and of that length.

        What ``into`` holds for the others is not defined: absent, of another length, or damaged,
        in which case the object is deleted and counted in ``damaged``.
        """

    def exists(self, names: Sequence[str]) -> Found:
        """Which objects are there."""

    def delete(self, names: Sequence[str]) -> None:
        """Forget objects; those that are not there are passed over."""

    @property
    def damaged(self) -> int:
        """Objects found damaged so far."""

    def close(self) -> None:
        """Let go of files, threads and connections; what is kept stays."""
