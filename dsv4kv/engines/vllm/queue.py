"""A free queue of cached blocks in flat arrays, for rules whose blocks do not stay in stretches.

An entry is a cached block, or a few blocks of one table that are of use only together. What is
cached is known by keys; a key may be kept several times, and then its oldest copy is found first.
Several requests may use one entry; it joins the queue when the last of them gives it back.
Source: vLLM 0.33, ``v1/core/block_pool.py``, ``kv_cache_utils.py``: ``FreeKVCacheBlockQueue``.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.paths import Ints

_NONE = -1
_WINDOW, _FEW = 256, 8


class BlockQueue:
    """Blocks of one size, cached under keys, evicted in the order they were given back.

    Attributes:
        uncached: Free blocks that hold nothing; they are taken first.
        idle: Cached blocks that nobody uses.
        busy: Cached blocks that requests use.
        evicted: Cached blocks taken for new content so far.
        first: int64[keys]: entry that is found for every key; -1 where there is none.
        changes: How often blocks were cached or let go.
    """

    def __init__(self, blocks: int, keys: int) -> None:
        """An empty cache."""
        self.uncached = blocks
        self.idle = self.busy = self.evicted = self.changes = 0
        self.first: Ints = np.full(keys, _NONE, np.int64)
        self._last: Ints = np.zeros(keys, np.int64)
        self._key, self._size, self._place, self._next, self._users, self._spare = (
            np.zeros(0, np.int64) for _ in range(6)
        )
        self._spares = 0  # leading ones of ``_spare``: numbers of entries that are none
        self._queue: Ints = np.zeros(1024, np.int64)
        self._front = self._back = 0
        self._pieces: dict[int, list[tuple[int, int]]] = {}  # of what was given back in parts
        self._whole: dict[int, int] = {}  # what a piece is a piece of
        self._apart = np.zeros(0, bool)  # whether an entry has pieces, or is one

    def cache(self, keys: Ints, size: int | Ints) -> Ints:
        """Register entries of ``size`` blocks in use under their keys, all different.

        Returns the entries.
        """
        if not len(keys):
            return np.zeros(0, np.int64)
        self.changes += 1
        while self._spares < len(keys):
            self._add_entries()
        new = self._spare[self._spares - len(keys) : self._spares].copy()
        self._spares -= len(keys)
        self._key[new], self._size[new], self._users[new], self._next[new] = keys, size, 1, _NONE
        self.busy += size * len(keys) if isinstance(size, int) else int(np.add.reduce(size))
        present = self.first.take(keys) != _NONE
        if not any_true(present):
            self.first[keys] = self._last[keys] = new
            return new
        fresh, copied = keys[~present], keys[present]
        self.first[fresh] = self._last[fresh] = new[~present]
        self._next[self._last[copied]] = new[present]
        self._last[copied] = new[present]
        return new

    def _add_entries(self) -> None:
        """Have twice as many."""
        count = len(self._key)
        more = np.arange(count, 2 * count or 1024)
        self._key, self._size, self._place, self._next, self._users, self._spare = (
            np.concatenate([column, np.zeros_like(more)])
            for column in (
                self._key,
                self._size,
                self._place,
                self._next,
                self._users,
                self._spare,
            )
        )
        self._place[count:] = _NONE
        self._apart = np.append(self._apart, np.zeros(len(more), bool))
        self._spare[self._spares : self._spares + len(more)] = more
        self._spares += len(more)

    def idle_blocks(self, entries: Ints) -> int:
        """Blocks of these entries that nobody uses."""
        if not len(entries):
            return 0
        return int(self._size.take(entries).dot(self._users.take(entries) == 0))

    def pieces(self, entry: int) -> list[tuple[int, int]]:
        """What is given back of an entry at once, the last blocks first: an entry with its key.

        With each the blocks of the entry behind it. The first has the entry's own number.
        """
        return self._pieces.get(entry) or [(0, entry)]

    def in_pieces(self, entries: Sequence[int]) -> Iterable[int]:
        """Those of them that were given back in parts."""
        return self._pieces.keys() & entries if self._pieces else ()

    def split(self, entry: int, behind: int) -> None:
        """Let the last ``behind`` blocks of an entry be given back after those before them."""
        pieces = self.pieces(entry)
        place = max(at for at, (after, _) in enumerate(pieces) if after < behind)
        after, last = pieces[place]
        first = int(self._size[last]) - (behind - after)
        if first <= 0:
            return
        self._pieces[entry] = pieces
        if not self._spares:
            self._add_entries()
        self._spares -= 1
        new = int(self._spare[self._spares])
        self._key[new], self._size[new] = self._key[last], first
        self._users[new], self._place[new] = self._users[last], _NONE
        self._size[last] -= first
        pieces.insert(place + 1, (behind, new))
        self._whole[new] = entry
        self._apart[entry] = self._apart[new] = True

    def with_pieces(self, entries: Sequence[int]) -> list[int]:
        """Entries, and those that are parts of them."""
        split = [entry for entry in entries if entry in self._pieces]
        return [*entries, *(piece for entry in split for _, piece in self._pieces[entry][1:])]

    def use(self, entries: Ints) -> None:
        """Take cached blocks out of the queue."""
        if not len(entries):
            return
        taken = self.idle_blocks(entries)
        self.idle -= taken
        self.busy += taken
        self._users[entries] += 1
        self._place[entries] = _NONE

    def give_back(self, entries: Ints) -> int:
        """Append blocks to the end of the queue, in the order in which they shall be evicted.

        Returns how many blocks they are, with those that others still use.
        """
        if len(entries) == 1:
            return self._give_back_one(int(entries[0]))
        sizes, users = self._size[entries], self._users[entries] - 1
        self._users[entries] = users
        blocks = freed = int(np.add.reduce(sizes))
        if any_true(users != 0):
            unused = users == 0
            entries, freed = entries[unused], int(np.add.reduce(sizes[unused]))
        self.busy -= freed
        self.idle += freed
        self._make_room(len(entries))
        back = self._back + len(entries)
        self._queue[self._back : back] = entries
        self._place[entries] = np.arange(self._back, back)
        self._back = back
        return blocks

    def _give_back_one(self, entry: int) -> int:
        """The same of one, as most are while requests decode."""
        size, users = int(self._size[entry]), int(self._users[entry]) - 1
        self._users[entry] = users
        if not users:
            self.busy -= size
            self.idle += size
            self._make_room(1)
            self._queue[self._back] = entry
            self._place[entry] = self._back
            self._back += 1
        return size

    def _make_room(self, count: int) -> None:
        """Have places for so many more behind the last: those before the front are of no use."""
        if self._back + count <= len(self._queue):
            return
        there = self._queue[self._front : self._back]
        there = there[self._place[there] == np.arange(self._front, self._back)]
        size = len(self._queue)
        while 2 * (len(there) + count) > size:
            size *= 2
        self._queue = np.zeros(size, there.dtype)
        self._queue[: len(there)] = there
        self._place[there] = np.arange(len(there))
        self._front, self._back = 0, len(there)

    def take(self, blocks: int) -> None:
        """Take blocks for new content: those that hold nothing, then from the front.

        Raises:
            OutOfBlocks: There are not so many free ones.
        """
        free = min(blocks, self.uncached)
        self.evict(blocks - free)
        self.uncached -= free

    def flow(self, taken: Ints) -> int:
        """Take blocks one after the other (fewer than none: give back); how many could.

        ``taken``: int64[times].
        """
        if not len(taken):
            return 0
        reached, free = taken.cumsum(), self.uncached + self.idle
        most = int(reached[reached.argmax()])
        if most > free:
            reached = reached[: int((reached > free).argmax())]
            if not len(reached):
                return 0
            most = int(reached[reached.argmax()])
        if most > self.uncached:
            self.evict(most - self.uncached)
            self.uncached = most
        self.uncached -= int(reached[-1])
        return len(reached)

    def evict(self, blocks: int) -> None:
        """Take blocks from the front; raises as ``take``."""
        if blocks > self.idle:
            missing = blocks - self.idle
            raise OutOfBlocks(f"{missing:,} blocks more than there are were asked for.")
        self.idle -= blocks
        self.evicted += blocks
        if 0 < blocks <= _FEW:
            blocks = self._evict_few(blocks)
        while blocks:
            looked = min(max(_WINDOW, blocks // 4), self._back - self._front)
            entries = self._queue[self._front : self._front + looked]
            window = np.arange(self._front, self._front + len(entries))
            there = (self._place.take(entries) == window).nonzero()[0]
            entries, places = entries[there], window[there]
            reached = self._size.take(entries).cumsum()
            whole = int(reached.searchsorted(blocks, side="right"))
            self._forget(entries[:whole])
            self._join(entries[:whole][self._apart.take(entries[:whole])].tolist())
            self._spare[self._spares : self._spares + whole] = entries[:whole]
            self._spares += whole
            blocks -= int(reached[whole - 1]) if whole else 0
            if whole < len(entries):
                self._front = int(places[whole])
                self._size[entries[whole]] -= blocks
                if blocks:  # a part of an entry is of no use, and stays until it is taken too
                    self._forget(entries[whole : whole + 1])
                    self._place[entries[whole]] = self._front
                return
            self._front += len(window)

    def _evict_few(self, blocks: int) -> int:
        """Take blocks one entry after the other; those that are left where it gets tedious."""
        for _ in range(_WINDOW):
            entry = int(self._queue[self._front])
            if self._place[entry] == self._front:
                size = int(self._size[entry])
                if size > blocks:
                    break
                blocks -= size
                self._let_key_go(entry)
                if self._apart[entry]:
                    self._join([entry])
                self._spare[self._spares] = entry
                self._spares += 1
            self._front += 1
            if not blocks:
                break
        return blocks

    def _let_key_go(self, entry: int) -> None:
        """``_forget`` of one."""
        self.changes += 1
        self._place[entry] = _NONE
        key = int(self._key[entry])
        if self.first[key] == entry:
            self.first[key] = self._next[entry]
        else:
            self._unchain(self._whole.get(entry, entry), key)

    def _forget(self, entries: Ints) -> None:
        """Let keys go; a later copy takes the place of the first."""
        self.changes += 1
        self._place[entries] = _NONE
        keys = self._key.take(entries)
        found = self.first.take(keys) == entries
        if not any_true(~found):
            self.first[keys] = self._next.take(entries)
            return
        self.first[keys[found]] = self._next.take(entries[found])
        for entry in entries[~found].tolist():
            self._unchain(self._whole.get(entry, entry), int(self._key[entry]))

    def _join(self, entries: list[int]) -> None:
        """Their numbers will be others': they are no pieces any more, and have none."""
        for entry in entries:
            self._apart[entry] = False
            self._whole.pop(entry, None)
            for _, piece in self._pieces.pop(entry, ()):
                if self._whole.get(piece) == entry:
                    del self._whole[piece]
                    self._apart[piece] = False

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


def any_true(flags: NDArray[np.bool_]) -> bool:
    """Whether any is True: of few flags, faster than NumPy says it."""
    return b"\1" in flags.tobytes()
