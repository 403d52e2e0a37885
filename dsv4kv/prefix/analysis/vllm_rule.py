"""vLLM's prefix cache with one group of blocks, one request at a time.

Only full blocks are cached, and a hit leaves the last token to be computed. All blocks of a prompt
are taken while it runs, the uncached tail too; afterwards the cached ones join the end of the free
queue, last block first, and the tail its front. New blocks come from the front. A full block that
is computed although it is cached (the last of a prompt of whole blocks) is kept twice; the older
copy is found first.
Source: vLLM 0.33, ``block_pool.py`` and ``single_type_kv_cache_manager.py``.

Blocks that entered the queue together are one *piece*, so time goes with pieces, not with blocks.
"""

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.walk import Shape

Held = tuple[int, int, int | None]
"""First block in use, the one after the last, and, for a block kept twice, its place by age."""
_OLDEST = 0


class Piece:
    """Blocks ``begin`` to ``end`` of one request's path, cached and free, together in the queue.

    The block at ``end - 1`` is nearest to the front.
    """

    __slots__ = ("after", "before", "begin", "end", "request")

    def __init__(self, request: int, begin: int, end: int) -> None:
        self.request, self.begin, self.end = request, begin, end
        self.before: Piece = self
        self.after: Piece = self

    def unlink(self) -> None:
        """Leave the queue."""
        self.before.after, self.after.before = self.after, self.before

    def link_before(self, other: "Piece") -> None:
        """Join the queue between ``other`` and the one before it."""
        self.before, self.after = other.before, other
        self.before.after = other.before = self


class VllmPool:
    """The free queue, and the hashes of what is in it."""

    def __init__(self, shape: Shape, blocks: int) -> None:
        """An empty cache of so many blocks."""
        self._shape = shape
        self._ring = Piece(-1, 0, 0)  # its ``after`` is the front of the queue
        self._pieces: dict[int, Piece] = {}
        self._copies: dict[int, list[Piece]] = {}  # blocks kept twice, oldest copy first
        self._uncached = blocks

    def serve(self, request: int, input_blocks: int, hit_limit: int) -> int:
        """Run one request; returns the blocks that it hit."""
        held = self._take_hits(request, hit_limit)
        hit = held[-1][1] if held else 0
        self._take_free(input_blocks - hit)
        full = self._shape.blocks[request]
        held += self._new_pieces(request, hit, full)
        for begin, end, place in reversed(held):
            self._give_back(request, begin, end, place)
        self._uncached += input_blocks - full
        return hit

    def _name(self, request: int, block: int) -> int:
        return self._shape.name(request, self._shape.path(request), block)

    def _take_hits(self, request: int, limit: int) -> list[Held]:
        """Take the longest cached prefix out of the queue."""
        held: list[Held] = []
        begin = 0
        path = self._shape.path(request)
        while begin < limit:
            name = self._shape.name(request, path, begin)
            if copies := self._copies.get(name):
                self._drop_copy(name, copies[0])
                held.append((begin, begin + 1, _OLDEST))
                begin += 1
                continue
            piece = self._pieces.get(name)
            if piece is None:
                break
            other = self._shape.path(piece.request)
            common = self._shape.common_blocks(request, piece.request, (path, other))
            end = min(common, piece.end, limit)
            self._shorten(piece, name, end)
            held.append((begin, end, None))
            begin = end
        return held

    def _shorten(self, piece: Piece, name: int, begin: int) -> None:
        """Let a piece begin later; what was before is in use."""
        del self._pieces[name]
        piece.begin = begin
        if begin == piece.end:
            piece.unlink()
        else:
            self._pieces[self._name(piece.request, begin)] = piece

    def _take_free(self, count: int) -> None:
        """Take blocks from the front: uncached ones first, then the oldest cached ones."""
        uncached = min(count, self._uncached)
        self._uncached -= uncached
        count -= uncached
        while count:
            piece = self._ring.after
            taken = min(count, piece.end - piece.begin)
            piece.end -= taken
            count -= taken
            if piece.begin == piece.end:
                name = self._name(piece.request, piece.begin)
                if piece in self._copies.get(name, ()):
                    self._drop_copy(name, piece)
                else:
                    del self._pieces[name]
                    piece.unlink()

    def _drop_copy(self, name: int, piece: Piece) -> None:
        piece.unlink()
        self._copies[name].remove(piece)
        if not self._copies[name]:
            del self._copies[name]

    def _new_pieces(self, request: int, hit: int, full: int) -> list[Held]:
        """What the request computed; its last block may be cached already."""
        if hit == full:
            return []
        name = self._name(request, full - 1)
        if name not in self._copies and name in self._pieces:
            self._set_apart(name)
        if name not in self._copies:
            return [(hit, full, None)]
        newest = len(self._copies[name])
        return [(hit, full - 1, None), (full - 1, full, newest)][hit == full - 1 :]

    def _set_apart(self, name: int) -> None:
        """Make the first block of a piece one of its own, for it is going to have a copy."""
        piece = self._pieces[name]
        single = Piece(piece.request, piece.begin, piece.begin + 1)
        single.link_before(piece.after)
        self._shorten(piece, name, piece.begin + 1)
        self._copies[name] = [single]

    def _give_back(self, request: int, begin: int, end: int, place: int | None) -> None:
        """Append blocks to the end of the queue; copies stay in the order of their age."""
        piece = Piece(request, begin, end)
        piece.link_before(self._ring)
        name = self._name(request, begin)
        if place is None:
            self._pieces[name] = piece
        else:
            self._copies.setdefault(name, []).insert(place, piece)


def replay_vllm(
    table: PathTable, grain_tokens: int, capacity_blocks: int, key_tokens: int = 0
) -> Ints:
    """Serve a trace; returns int64[requests]: blocks that each request hit.

    The longest prompt must fit ``capacity_blocks``. ``key_tokens`` are as ``Shape`` says.
    """
    shape = Shape(table, grain_tokens, whole_blocks=True, key_tokens=key_tokens)
    pool = VllmPool(shape, capacity_blocks)
    tokens = table.input_tokens
    needed = (-(-tokens // grain_tokens)).tolist()
    limits = np.minimum((tokens - 1) // grain_tokens, shape.tokens // grain_tokens).tolist()
    hits = [pool.serve(r, needed[r], limits[r]) for r in range(len(table))]
    return np.array(hits, np.int64)
