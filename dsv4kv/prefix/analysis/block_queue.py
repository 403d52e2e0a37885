"""A free queue of cached blocks in flat arrays, for rules whose blocks do not stay in stretches.

An entry is a cached block, or a few blocks of one table that are of use only together. What is
cached is told by keys; a key may be kept several times, and then its oldest copy is found first.
Several requests may use one entry; it joins the queue when the last of them gives it back.
"""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.analysis.paths import Ints

_NONE = -1
_WINDOW = 256


class BlockQueue:
    """Blocks of one size, cached under keys, evicted in the order they were given back.

    Attributes:
        uncached: Free blocks that hold nothing; they are taken first.
        idle: Cached blocks that nobody uses.
        busy: Cached blocks that requests use.
        evicted: Cached blocks taken for new content so far.
        first: int64[keys]: entry that is found for every key; -1 where there is none.
    """

    def __init__(self, blocks: int, keys: int) -> None:
        """An empty cache."""
        self.uncached = blocks
        self.idle = self.busy = self.evicted = 0
        self.first: Ints = np.full(keys, _NONE, np.int64)
        self._last: Ints = np.zeros(keys, np.int64)
        self._key, self._size, self._place, self._next, self._users = (
            np.zeros(1024, np.int64) for _ in range(5)
        )
        self._entries = 0
        self._queue: Ints = np.zeros(1024, np.int64)
        self._front = self._back = 0

    def cache(self, keys: Ints, size: int) -> Ints:
        """Register blocks in use under their keys; returns their entries."""
        count = len(keys)
        new = np.arange(self._entries, self._entries + count)
        self._entries += count
        while self._entries > len(self._key):
            self._key, self._size, self._place, self._next, self._users = (
                np.concatenate([column, np.zeros_like(column)])
                for column in (self._key, self._size, self._place, self._next, self._users)
            )
        self._key[new], self._size[new], self._users[new] = keys, size, 1
        self._place[new] = self._next[new] = _NONE
        self.busy += size * count
        present = self.first[keys] != _NONE
        self.first[keys[~present]] = self._last[keys[~present]] = new[~present]
        for entry in new[present].tolist():
            key = self._key[entry]
            self._next[self._last[key]] = entry
            self._last[key] = entry
        return new

    def blocks(self, entries: Ints) -> int:
        """Blocks of these entries."""
        return int(self._size[entries].sum())

    def idle_blocks(self, entries: Ints) -> int:
        """Blocks of these entries that nobody uses."""
        return int(self._size[entries][self._users[entries] == 0].sum())

    def use(self, entries: Ints) -> None:
        """Take cached blocks out of the queue."""
        taken = self.idle_blocks(entries)
        self.idle -= taken
        self.busy += taken
        self._users[entries] += 1
        self._place[entries] = _NONE

    def give_back(self, entries: Ints) -> None:
        """Append blocks to the end of the queue, in the order in which they shall be evicted."""
        self._users[entries] -= 1
        entries = entries[self._users[entries] == 0]
        freed = int(self._size[entries].sum())
        self.busy -= freed
        self.idle += freed
        back = self._back + len(entries)
        while back > len(self._queue):
            self._queue = np.concatenate([self._queue, np.zeros_like(self._queue)])
        self._queue[self._back : back] = entries
        self._place[entries] = np.arange(self._back, back)
        self._back = back

    def take(self, blocks: int) -> None:
        """Take blocks for new content: those that hold nothing, then from the front.

        Raises:
            OutOfBlocks: There are not so many free ones.
        """
        free = min(blocks, self.uncached)
        self.uncached -= free
        blocks -= free
        if blocks > self.idle:
            missing = blocks - self.idle
            self.uncached += free
            raise OutOfBlocks(f"{missing:,} blocks more than there are were asked for.")
        self.idle -= blocks
        self.evicted += blocks
        while blocks:
            window = np.arange(self._front, min(self._front + _WINDOW, self._back))
            entries = self._queue[window]
            there = self._place[entries] == window
            entries, places = entries[there], window[there]
            reached = self._size[entries].cumsum()
            whole = int(reached.searchsorted(blocks, side="right"))
            self._forget(entries[:whole])
            blocks -= int(reached[whole - 1]) if whole else 0
            if whole < len(entries):
                self._front = int(places[whole])
                self._size[entries[whole]] -= blocks
                if blocks:  # a part of an entry is of no use, and stays until it is taken too
                    self._forget(entries[whole : whole + 1])
                    self._place[entries[whole]] = self._front
                return
            self._front += len(window)

    def _forget(self, entries: Ints) -> None:
        """Let keys go; a later copy takes the place of the first."""
        self._place[entries] = _NONE
        keys = self._key[entries]
        alone = (self.first[keys] == entries) & (self._next[entries] == _NONE)
        self.first[keys[alone]] = _NONE
        for entry in entries[~alone].tolist():
            self._unchain(entry, int(self._key[entry]))

    def _unchain(self, entry: int, key: int) -> None:
        at = int(self.first[key])
        if at == entry:
            self.first[key] = self._next[entry]
            return
        while at != _NONE and self._next[at] != entry:
            at = int(self._next[at])
        if at != _NONE:  # else it was forgotten when a part of it was taken
            self._next[at] = self._next[entry]
            if self._next[at] == _NONE:
                self._last[key] = at


def last_true(flags: NDArray[np.bool_]) -> int:
    """Index after the last True; 0 where there is none."""
    places = np.flatnonzero(flags)
    return int(places[-1]) + 1 if len(places) else 0
