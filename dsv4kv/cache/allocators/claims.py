"""What keeps a block from being evicted: its references, and referenced blocks that follow it."""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import Ids


class Claims:
    """Both counts side by side, so that those of a chain are read, compared and cleared at once.

    There is a cell more than there are blocks, for what first blocks of chains follow: never
    without a reference.

    Attributes:
        refs: int32[blocks + 1], references.
        live: int32[blocks + 1], registered blocks that follow and are referenced.
    """

    def __init__(self, num_blocks: int) -> None:
        """Start without references."""
        self._both = np.zeros(num_blocks + 1, dtype=np.int64)
        self.refs, self.live = _halves(self._both)
        self.refs[-1] = 1
        # Comparing bytes is several times faster than comparing arrays and reducing the result.
        self._ones = np.ones(num_blocks, dtype=np.int32).tobytes()
        held = np.zeros(num_blocks, dtype=np.int64)
        refs, live = _halves(held)
        refs[:] = live[:] = 1
        live[-1] = 0
        self._chain = held.tobytes()

    def are_last(self, ids: Ids) -> bool:
        """Whether every block has one reference; ``IndexError`` beyond the pool."""
        return self._ones.startswith(self.refs[ids].tobytes())

    def are_chain(self, ids: Ids) -> bool:
        """Whether every block has one reference and one referenced follower, but none the last."""
        return self._chain.endswith(self._both[ids].tobytes())

    def clear(self, ids: Ids) -> None:
        """Leave blocks without references, of their own and of what follows."""
        self._both[ids] = 0


def _halves(cells: Ids) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Two int32[n] in the memory of one int64[n]."""
    pairs = cells.view(np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
