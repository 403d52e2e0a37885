"""vLLM's prefix cache for requests that run side by side.

vLLM's prefix cache with one group of blocks, one request at a time. Only full blocks are cached,
and a hit leaves the last token to be computed. All blocks of a prompt are taken while it runs, the
uncached tail too; afterwards the cached ones join the end of the free queue, last block first, and
the tail its front. New blocks come from the front. A full block that is computed although it is
cached (the last of a prompt of whole blocks) is kept twice; the older copy is found first.
Source: vLLM 0.33, ``block_pool.py`` and ``single_type_kv_cache_manager.py``.

Blocks that entered the queue together are one *piece*, so time goes with pieces, not with blocks.

vLLM's prefix cache with DeepSeek-V4's groups, one request at a time, in chunks of prompt.
Compressed entries are one group; windows and compressor states are others, with smaller blocks
from the same pool. A hit ends at a whole block of context whose last window and state blocks are
all cached. Blocks behind the window are given back after every chunk; which of them stay cached is
the retention: every boundary, one in an interval, or only where a prompt ends and where a hit ran
out of windows. The blocks of one table that a hit needs at its end are taken for one entry, though
an engine may find some of them in an older copy and some in a newer.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.
"""

from collections.abc import Sequence

import numpy as np

from dsv4kv.engines.cache import Generating, Hit
from dsv4kv.engines.speculation import SPECULATIONS, Speculation
from dsv4kv.engines.vllm.groups import GroupHits, GroupPool, Kept, Running
from dsv4kv.engines.vllm.tables import TailGroup, Way, number_ways
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.paths import Ints, PathTable, Shape


def replay_vllm_groups(
    table: PathTable,
    size: int,
    capacity_blocks: int,
    groups: tuple[TailGroup, ...],
    *,
    retention_tokens: int | None,
    chunk_tokens: int,
    speculation: Speculation = SPECULATIONS["none"],
    replayed_tokens: int = 0,
) -> GroupHits:
    """Serve a trace.

    Args:
        table: The trace.
        size: Tokens of a block of context.
        capacity_blocks: Blocks of the pool.
        groups: Tables of windows and states, cut for the speculation.
        retention_tokens: Windows stay cached at every multiple of it, at the end of a prompt and
            where a hit ran out of them; 0 for these two only; None at every block.
        chunk_tokens: Tokens of a prompt computed at once.
        speculation: How drafts are made.
        replayed_tokens: Tokens at a hit's end that are computed again, before others.

    Raises:
        ConfigError: Chunks or intervals that are no whole blocks.
    """
    check_retention(retention_tokens, size)
    if chunk_tokens % size:
        raise ConfigError(
            f"chunks of {chunk_tokens} tokens of a prompt must be whole blocks of {size} tokens."
        )
    ways, nodes = number_ways(table, size, groups, speculation.key_tokens)
    pool = GroupPool(
        capacity_blocks,
        nodes,
        size,
        groups,
        drops=speculation.drops,
        replayed_tokens=replayed_tokens,
    )
    hits = np.zeros((3, len(table)), np.int64)
    rejected = np.zeros(len(table), bool)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        way = ways[request]
        resumed, found, marked = pool.find(way, (tokens - 1) // size)
        begin = resumed * size - (replayed_tokens if resumed else 0)
        ends = [*range(begin + chunk_tokens, tokens, chunk_tokens), tokens]
        if pool.most_held([resumed * size, *ends]) > capacity_blocks:
            rejected[request] = True
            continue
        kept = kept_ends(way, tokens, (resumed, found), size, retention_tokens, speculation)
        running = pool.begin(way, resumed, kept)
        for end in ends:
            pool.compute(running, [end])
        pool.end(running)
        hits[:, request] = resumed, found, marked
    return GroupHits(hits[0], hits[1], hits[2], rejected)


def kept_ends(
    way: Way,
    tokens: int,
    hit: tuple[int, int],
    size: int,
    retention_tokens: int | None,
    speculation: Speculation,
) -> Kept:
    """Where the windows and states of a prompt stay cached.

    Args:
        way: The prompt.
        tokens: Its tokens.
        hit: Blocks that it resumes behind, and that its context found.
        size: Tokens of a block of context.
        retention_tokens: As ``replay_vllm_groups`` says.
        speculation: How drafts are made.
    """
    resumed, found = hit
    most = max(map(len, way))
    if retention_tokens is None:
        every = range(1, most + 1)
        return Kept(every, every)
    last, whole = (tokens - 1) // size, tokens // size
    special = {max(0, last - 1), max(0, whole - 1)} if speculation.drops else {last}
    if found > resumed:
        special.add(found)
    if retention_tokens:
        step = retention_tokens // size
        special |= set(range(step, most + 1, step))
    tails = [end for end in sorted(special) if end <= most]  # 0: a draft's part ends behind it
    if not speculation.drops or found == resumed:
        return Kept(tails, tails)
    return Kept(tails, sorted({*tails, found - 1}))


def check_retention(retention_tokens: int | None, size: int) -> None:
    """Refuse an interval that is no whole blocks; raises ``ConfigError``."""
    if (retention_tokens or 0) % size:
        raise ConfigError(
            f"a retention of {retention_tokens} tokens must be whole blocks of {size} tokens."
        )


class VllmCache:
    """A pool of groups, and who runs in it; see ``EngineCache``.

    A request that begins is promised the most it can need, and takes it chunk by chunk: context
    that it has not yet, and windows and states whether others use them too or not, for they may
    not come free when it moves on. A decoding request keeps those its prompt ended with.
    """

    per_shared = 1
    windows = 0

    def __init__(
        self,
        pool: GroupPool,
        ways: list[Way],
        *,
        retention_tokens: int | None,
        chunk_tokens: int,
        speculation: Speculation = SPECULATIONS["none"],
    ) -> None:
        """An empty cache.

        Args:
            pool: The blocks.
            ways: Every prompt.
            retention_tokens: As ``replay_vllm_groups`` says.
            chunk_tokens: Most tokens of a prompt that are computed at once.
            speculation: How drafts are made.

        Raises:
            ConfigError: A retention that is no whole blocks.
        """
        check_retention(retention_tokens, pool.size)
        self.total = pool.queue.uncached
        self.freed = 0
        self._pool, self._ways, self._speculation = pool, ways, speculation
        self._retention, self._chunk = retention_tokens, chunk_tokens
        self._running: dict[int, Running] = {}
        self._tails: dict[int, int] = {}  # windows and states that a request may hold
        self._context: dict[int, int] = {}  # blocks of a prompt that are not computed yet
        self._promised = self._decoded = 0
        self._asked, self._found = (-1, 0, 0), Hit(0, 0, 0)

    @property
    def evicted(self) -> int:
        """Cached blocks evicted so far."""
        return self._pool.queue.evicted

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.queue.uncached

    @property
    def cached(self) -> int:
        """Cached blocks that nobody uses."""
        return self._pool.queue.idle

    @property
    def shared(self) -> int:
        """Cached blocks that requests use."""
        return self._pool.queue.busy

    @property
    def private(self) -> int:
        """Blocks that one request holds for itself."""
        return self.total - self.free - self.cached - self.shared

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted, less those promised."""
        return self.total - self._pool.context_used - self._decoded - self._promised

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""
        if self._most_blocks(tokens) <= self.total:
            return ""
        chunk = ", with windows and states of a chunk" if self._pool.groups else ""
        return f"longer than all blocks together{chunk}"

    def _most_blocks(self, tokens: int) -> int:
        """Blocks that must be there for a request to be admitted."""
        return self._pool.most_blocks(tokens, self._chunk)

    def peek(self, request: int, tokens: int) -> int:
        """Blocks of context that a prompt of so many tokens would find."""
        return self._find(request, tokens).found

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` blocks are others'."""
        resumed = self._find(request, tokens).resumed
        idle = self._pool.idle_context(self._ways[request].context[:resumed])
        needed = self._pool.most_blocks(tokens, self._chunk, resumed)
        return needed + idle + promised <= self.available

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""
        hit, way, pool = self._find(request, tokens), self._ways[request], self._pool
        found = hit.resumed, hit.found
        kept = kept_ends(way, tokens, found, pool.size, self._retention, self._speculation)
        self._running[request] = pool.begin(way, hit.resumed, kept)
        self._tails[request] = pool.most_tails(tokens, self._chunk, hit.resumed)
        self._context[request] = -(-tokens // pool.size) - hit.resumed
        self._promised += self._tails[request] + self._context[request]
        return hit

    def compute(self, request: int, position: int, earlier: Sequence[int] = ()) -> int:
        """Cache what is computed up to ``position``; returns the blocks that others can find."""
        running, pool = self._running[request], self._pool
        before = pool.context_used
        # what is before its position is computed again
        pool.compute(running, [e for e in (*earlier, position) if e > running.position])
        self._context[request] -= pool.context_used - before
        self._promised -= pool.context_used - before
        return self._cached(running, position)

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: keep only what these need."""
        running = self._running[request]
        self._pool.slide(running)
        self._keep_tails(request, self._pool.tail_blocks(running))

    def decoded(self, requests: Generating) -> None:
        """A window that goes on gives back what it takes."""

    def end(self, request: int, decoded_blocks: int, position: int = 0) -> int:
        """Give everything back, with so many blocks that decoding took; returns those cached."""
        running = self._running.pop(request)
        self._promised -= self._context.pop(request)
        self._keep_tails(request, 0)
        self._pool.end(running)
        self._pool.queue.uncached += decoded_blocks
        self._decoded -= decoded_blocks
        return self._cached(running, running.position)

    def take(self, blocks: int) -> None:
        """Take blocks for decoded tokens; raises ``OutOfBlocks``."""
        self._pool.queue.take(blocks)
        self._decoded += blocks

    def _find(self, request: int, tokens: int) -> Hit:
        """What a prompt would find; looked up once for as long as nothing is cached or let go."""
        asked = request, tokens, self._pool.queue.changes
        if self._asked != asked:
            limit = (tokens - 1) // self._pool.size
            self._asked, self._found = asked, Hit(*self._pool.find(self._ways[request], limit))
        return self._found

    def _cached(self, running: Running, position: int) -> int:
        """Blocks that others can find of a prompt computed up to ``position``."""
        reached = max(position, running.position)
        return min(reached // self._pool.size, len(running.way.context))

    def _keep_tails(self, request: int, blocks: int) -> None:
        """A request will hold no more windows and states; the rest is free to others."""
        self._promised -= self._tails.pop(request, 0) - blocks
        if blocks:
            self._tails[request] = blocks
        self.freed += 1


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
