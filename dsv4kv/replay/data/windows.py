"""Windows and states of prefixes, by the key they stand behind."""

from collections.abc import Container

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.errors import CacheError


class KeptWindows:
    """Checkpoints with data; which of them are kept is decided elsewhere.

    A checkpoint has to be copied while the chunk passes its place, before it is decided whether
    it is kept: until ``settle`` it is *staged*.
    """

    def __init__(self, pool: CheckpointPool, kept: Container[int]) -> None:
        """``kept`` has the keys whose checkpoints are to be kept, at any time."""
        self._pool, self._kept = pool, kept
        self._numbers: dict[int, int] = {}
        self._staged: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def stage(self, slot: int, key: int) -> None:
        """Copy what a slot needs to go on behind a key; nothing if that is there."""
        if key not in self._numbers:
            self._staged.append((key, self._pool.save(slot)))

    def settle(self) -> None:
        """Keep the staged ones that are to be kept; give the room of all others back."""
        for key, number in self._staged:
            if key in self._kept and key not in self._numbers:
                self._numbers[key] = number
            else:
                self._pool.release(number)
        self._staged.clear()
        for key in [key for key in self._numbers if key not in self._kept]:
            self._pool.release(self._numbers.pop(key))

    def number(self, key: int) -> int:
        """Number of a key's checkpoint in the pool; raises ``CacheError`` without one."""
        if key not in self._numbers:
            raise CacheError(f"no checkpoint is kept behind the shared block {key}.")
        return self._numbers[key]
