"""Keys that were evicted not long ago."""

from collections import OrderedDict
from collections.abc import Hashable


class Ghosts:
    """First keys of evicted pieces, oldest first, with how many keys each piece had.

    A chain that returns goes on where the cached part of it ends, and that is where the last
    piece of it was cut off: so its first key tells that the piece is known.
    """

    def __init__(self) -> None:
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()
        self.size = 0

    def __contains__(self, key: Hashable) -> bool:
        """Whether a piece that began with the key is remembered."""
        return key in self._sizes

    def add(self, key: Hashable, size: int) -> None:
        """Remember a piece as the newest."""
        self.take(key)
        self._sizes[key] = size
        self.size += size

    def take(self, key: Hashable) -> int:
        """Forget a piece and return its size; 0 if it is not known."""
        size = self._sizes.pop(key, 0)
        self.size -= size
        return size

    def recount(self) -> None:
        """Count again what is remembered."""
        self.size = sum(self._sizes.values())

    def shrink(self, size: int) -> None:
        """Forget the oldest pieces until at most ``size`` keys are left."""
        while self.size > max(size, 0):
            self.size -= self._sizes.popitem(last=False)[1]
