"""vLLM's block pool: cached blocks with reference counts and a free queue.

An entry is a cached block, or the blocks of a window that a hit needs together.  Blocks that hold
nothing have no identity and are counted.
Source: vLLM 0.33, ``v1/core/block_pool.py``, ``kv_cache_utils.py`` (``FreeKVCacheBlockQueue``).
"""

from dsv4kv.core.cache import EngineCache


class Entry:
    """Cached blocks, in the free queue while no request uses them.

    An entry whose blocks are freed at different times is split into pieces: the entry itself
    holds the last ones, ``pieces`` lists it and the others, last blocks first.
    """

    __slots__ = (
        "after", "before", "behind", "blocks", "copy", "first", "found", "key", "pieces", "refs",
        "whole",
    )  # fmt: skip

    def __init__(self, key: int, blocks: int) -> None:
        self.key = key  # hash of the content
        self.blocks = blocks
        self.refs = 1  # requests that use it
        self.after = 0  # blocks of the whole entry that follow these
        # the entry that it is a piece of; None where it is none, or that entry itself
        self.whole: Entry | None = None
        self.pieces = _NO_PIECES  # all pieces; empty where it has not been split
        self.copy: Entry | None = None  # the next younger entry of the same key
        self.first = True  # whether it is in ``BlockPool.entries``
        self.found = True  # whether it is there, or a ``copy`` of one that is
        self.before: Entry | None = None  # in the free queue
        self.behind: Entry | None = None


_NO_PIECES: list[Entry] = []


class BlockPool(EngineCache):
    """Blocks of one size, evicted in the order in which they were freed."""

    def __init__(self, blocks: int, block_tokens: int = 1, chunk_tokens: int = 1) -> None:
        super().__init__(blocks, block_tokens, chunk_tokens)
        self.changes = 0  # number of times that ``entries`` changed
        self.entries: dict[int, Entry] = {}  # the oldest entry of every key
        self._front, self._back = Entry(-1, 0), Entry(-1, 0)
        self._front.behind, self._back.before = self._back, self._front

    def evict(self, blocks: int) -> None:
        self.cached -= blocks
        self.evicted += blocks
        self.uncached += blocks
        while blocks > 0:
            entry = self._front.behind
            assert entry is not None
            whole = entry if entry.whole is None else entry.whole
            self._forget(whole)
            if entry.blocks > blocks:  # the others stay, of no use, until they are evicted too
                entry.blocks -= blocks
                return
            blocks -= entry.blocks
            self._unlink(entry)
            if whole.pieces:
                whole.pieces.remove(entry)  # one that lists itself would never be freed

    def cache(self, key: int, blocks: int) -> Entry:
        """Cache blocks in use under a key; an older entry of the key is found first."""
        entry = Entry(key, blocks)
        self.shared += blocks
        self.changes += 1
        older = self.entries.setdefault(key, entry)
        if older is not entry:
            while older.copy is not None:
                older = older.copy
            older.copy = entry
            entry.first = False
        return entry

    def touch(self, entry: Entry) -> None:
        """Let one more request use an entry, all its pieces included."""
        if entry.pieces:
            for piece in entry.pieces:
                self._touch(piece)
        else:
            self._touch(entry)

    def _touch(self, entry: Entry) -> None:
        if entry.refs == 0:
            self._unlink(entry)
            self.cached -= entry.blocks
            self.shared += entry.blocks
        entry.refs += 1

    def free(self, entry: Entry) -> None:
        """Let one request less use an entry or piece; without any it joins the queue's end."""
        entry.refs -= 1
        if entry.refs == 0:
            last = self._back.before
            assert last is not None
            last.behind, entry.before = entry, last
            entry.behind, self._back.before = self._back, entry
            self.cached += entry.blocks
            self.shared -= entry.blocks

    def split(self, entry: Entry, after: int) -> None:
        """Cut an entry so that its last ``after`` blocks can be freed apart from the others."""
        for place, piece in enumerate(entry.pieces or [entry]):
            if piece.after < after < piece.after + piece.blocks:
                entry.pieces = entry.pieces or [entry]
                first = Entry(entry.key, piece.after + piece.blocks - after)
                first.after, first.whole, first.refs = after, entry, piece.refs
                piece.blocks = after - piece.after
                entry.pieces.insert(place + 1, first)
                return

    def _unlink(self, entry: Entry) -> None:
        before, behind = entry.before, entry.behind
        assert before is not None
        assert behind is not None
        before.behind, behind.before = behind, before
        entry.before = entry.behind = None

    def _forget(self, entry: Entry) -> None:
        if not entry.found:
            return
        entry.found = False
        self.changes += 1
        if entry.first:
            if entry.copy is None:
                del self.entries[entry.key]
            else:
                self.entries[entry.key] = entry.copy
                entry.copy.first = True
            return
        older = self.entries[entry.key]
        while older.copy is not entry:
            assert older.copy is not None
            older = older.copy
        older.copy = entry.copy
