"""Which prefixes have a checkpoint of window and state, least recently used first."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class CheckpointStore:
    """Checkpoints by the key of the block they stand behind.

    Attributes:
        written: Checkpoints written so far.
        evicted: Of which made room for others.
        orphaned: Of which went with the block before them.
    """

    def __init__(self, capacity: int | None) -> None:
        """``capacity`` None is without limit."""
        self._capacity = capacity
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._ever: set[int] = set()
        self.written = self.evicted = self.orphaned = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def was_written(self, key: int) -> bool:
        """Whether there ever was one."""
        return key in self._ever

    def last_written(self, keys: Sequence[int], stop: int) -> int:
        """Leading keys up to the last, beyond ``stop``, that ever had a checkpoint behind it."""
        count = len(keys)
        while count > stop and keys[count - 1] not in self._ever:
            count -= 1
        return count

    def use(self, key: int) -> None:
        """Make one the newest."""
        self._kept.move_to_end(key)

    def write(self, key: int) -> bool:
        """Keep a checkpoint; returns whether it had to be copied."""
        if key in self._kept:
            self.use(key)
            return False
        if self._capacity is not None and len(self._kept) >= self._capacity:
            if not self._capacity:
                return False
            self._kept.popitem(last=False)
            self.evicted += 1
        self._kept[key] = None
        self._ever.add(key)
        self.written += 1
        return True

    def drop(self, keys: Iterable[int]) -> None:
        """Forget those behind blocks that are gone: nothing can go on there any more."""
        kept = self._kept
        for key in kept.keys() & keys:
            del kept[key]
            self.orphaned += 1
