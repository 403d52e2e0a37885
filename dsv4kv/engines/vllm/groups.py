"""Blocks of vLLM's groups over one free queue: context, windows and states of every request.

A request takes blocks chunk by chunk and gives those behind its windows back; several run at once.
With no group but the context it is vLLM's cache of a model that keeps nothing else.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.

A free queue of cached blocks in flat arrays, for rules whose blocks do not stay in stretches. An
entry is a cached block, or a few blocks of one table that are of use only together. What is cached
is known by keys; a key may be kept several times, and then its oldest copy is found first. Several
requests may use one entry; it joins the queue when the last of them gives it back.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsv4kv.engines.speculation import Speculation
from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.paths import Ints, NumberedPaths, PathTable, find_reuse, number_paths

UNBOUNDED_TOKENS = 1 << 40
"""Of the one block of a ring: more than a request has."""
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
        if not _any(present):
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
        if _any(users != 0):
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
        if not _any(~found):
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


def _any(flags: NDArray[np.bool_]) -> bool:
    """Whether any is True: of few flags, faster than NumPy says it."""
    return b"\1" in flags.tobytes()


def last_true(flags: NDArray[np.bool_]) -> int:
    """Index after the last True; 0 where there is none."""
    places = flags.nonzero()[0]
    return int(places[-1]) + 1 if len(places) else 0


class Way(NamedTuple):
    """A prompt as numbers of its whole blocks.

    Attributes:
        context: int64: as the context's table knows them.
        followed: int64: as ``context``, but blocks with other tokens after them have other
            numbers, where a part of a table asks for it; else the same.
    """

    context: Ints
    followed: Ints


@dataclass(frozen=True)
class Part:
    """Blocks in a row that are cached, found and evicted together, one after the other.

    Attributes:
        blocks: How many.
        end_tokens: Where the last one ends, from the end of a block of context.
        followed: By which numbers of ``Way`` it is known.
        drafts: Whether a draft's layer may be among them.
    """

    blocks: int
    end_tokens: int = 0
    followed: bool = False
    drafts: bool = False

    def numbers(self, way: Way) -> Ints:
        """Its numbers in a prompt."""
        return way.followed if self.followed else way.context


@dataclass(frozen=True)
class TailGroup:
    """A table of window or state blocks.

    Attributes:
        block_tokens: Tokens of one of its blocks.
        needed: Blocks in a row that a hit needs at its end.
        cut: These, in parts, and what a draft needs beyond; empty for one part.
        cached: Whether others can find them; else a request that hits computes the needed ones
            again, in blocks of its own.
        seen_tokens: Tokens before the next one that it sees: what is before them is given back.
            None for all tokens of the needed blocks.
    """

    block_tokens: int
    needed: int
    cut: tuple[Part, ...] = ()
    cached: bool = True
    seen_tokens: int | None = None

    @property
    def ring(self) -> bool:
        """Whether it is one block of a request, however many tokens this has."""
        return self.block_tokens >= UNBOUNDED_TOKENS

    @property
    def seen(self) -> int:
        """Tokens before the next one that it sees."""
        return self.tail_tokens if self.seen_tokens is None else self.seen_tokens

    def start(self, position: int) -> int:
        """Tokens before the blocks that are held behind so many computed ones.

        Source: vLLM 0.33, ``single_type_kv_cache_manager.py``: ``remove_skipped_blocks``.
        """
        return max(0, position - self.seen) // self.block_tokens * self.block_tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens that the needed blocks cover."""
        return self.needed * self.block_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is cached together, in order."""
        return (self.cut or (Part(self.needed),)) if self.cached else ()


def cut_groups(
    groups: tuple[TailGroup, ...], speculation: Speculation, drafting: frozenset[int]
) -> tuple[TailGroup, ...]:
    """Groups as an engine that drafts asks for them.

    Where keys cover tokens behind a block, the last block of a tail is one that prompts which part
    there do not share, and those before it are shared. A group with a draft's layer, of whose hit
    the last block is given up, needs one block more, behind the hit.

    Args:
        groups: Without drafts.
        speculation: How it drafts.
        drafting: Places of the groups that may have a draft's layer.
    """

    def cut(number: int, group: TailGroup) -> tuple[Part, ...]:
        if speculation.key_tokens and group.needed > 1:
            before = Part(group.needed - 1, -group.block_tokens, followed=True)
            return before, Part(1)
        if speculation.drops and number in drafting:
            ends = range((1 - group.needed) * group.block_tokens, 1, group.block_tokens)
            tail = (Part(1, end, drafts=True) for end in ends)
            return *tail, Part(1, group.block_tokens, followed=True, drafts=True)
        return ()

    return tuple(replace(group, cut=cut(number, group)) for number, group in enumerate(groups))


def number_ways(
    table: PathTable,
    size: int,
    groups: tuple[TailGroup, ...],
    key_tokens: int,
    known: NumberedPaths | None = None,
) -> tuple[list[Way], int]:
    """All prompts of a trace as numbers of blocks, and how many numbers there are.

    Args:
        table: The trace.
        size: Tokens of a block of context.
        groups: Tables that ask for parts.
        key_tokens: Tokens after a block of context that its key covers.
        known: The numbers of context, if they are known already.
    """
    context = known or _number(table, size, key_tokens)
    ends = [max(0, part.end_tokens) for group in groups for part in group.parts if part.followed]
    followed = _number(table, size, max(ends)) if ends else context
    ways = [Way(*pair) for pair in zip(context.paths, followed.paths, strict=True)]
    return ways, max(context.count, followed.count)


def _number(table: PathTable, size: int, key_tokens: int) -> NumberedPaths:
    return number_paths(find_reuse(table, size, whole_blocks=True, key_tokens=key_tokens))


@dataclass(frozen=True)
class GroupHits:
    """What requests hit, in blocks of context.

    Attributes:
        resumed: int64[requests]: where all groups agreed.
        found: int64[requests]: what the context group alone held.
        marked: int64[requests]: the last boundary up to there whose windows were ever cached.
        rejected: bool[requests]: whether the request can never run; then it hits nothing.
    """

    resumed: Ints
    found: Ints
    marked: Ints
    rejected: NDArray[np.bool_]


class Kept(NamedTuple):
    """Where the windows and states of a prompt stay cached.

    Attributes:
        tails: Behind so many blocks, in rising order from 1.
        drafts: The same in groups that have a draft's layer.
    """

    tails: Sequence[int]
    drafts: Sequence[int]


@dataclass(slots=True, eq=False)
class Running:
    """A request in the pool.

    Attributes:
        way: Its prompt.
        kept: Where its windows and states stay cached.
        position: Tokens that have blocks.
        context: Entries of its cached context blocks, in the order they came.
        tails: For every group: entries that it holds and that stay cached, in order.
        ends: For every group: tokens at which these end.
        starts: Where the blocks of every group that it still holds begin, in tokens.
    """

    way: Way
    kept: Kept
    position: int
    context: list[Ints]
    tails: list[list[int]]
    ends: list[list[int]]
    starts: list[int]


class GroupPool:
    """All groups' blocks in one queue; keys are numbers of blocks, table by table.

    Attributes:
        queue: The blocks.
        groups: Tables in addition to the context's.
        size: Tokens of a block of context.
        context_used: Blocks of context that requests hold, shared ones once.
    """

    def __init__(
        self,
        blocks: int,
        nodes: int,
        context_tokens: int,
        groups: tuple[TailGroup, ...],
        *,
        drops: bool = False,
        replayed_tokens: int = 0,
    ):
        """An empty cache.

        Args:
            blocks: Of all groups.
            nodes: How many numbers there are for blocks of the trace.
            context_tokens: Tokens of a block of context.
            groups: Tables in addition to the context's.
            drops: Whether a hit gives up its last block where there is nothing but context.
            replayed_tokens: Tokens at a hit's end that are computed again; a hit of so many or
                fewer is none.
        """
        self.groups, self._nodes = groups, nodes
        self._parts = [
            (number, part) for number, group in enumerate(groups) for part in group.parts
        ]
        rows = 1 + len(self._parts)
        self.queue = BlockQueue(blocks, (nodes + 1) * rows)
        self.size = context_tokens
        self.context_used = 0
        self._dropped = int(drops and not groups)
        self._longer = replayed_tokens // context_tokens if replayed_tokens else 0
        self._first = self.queue.first.reshape(rows, nodes + 1)
        self._sizes = [context_tokens, *(group.block_tokens for group in groups)]
        self._behind = max((max(0, part.end_tokens) for _, part in self._parts), default=0)
        self._marking = max((part for _, part in self._parts), key=_end, default=None)
        self._marked = np.zeros(nodes + 1, bool)
        self._cuts = _cut_alike(self._parts, nodes + 1, self._marking)
        self._windows = [(group.seen, group.block_tokens) for group in groups]
        self._widths = [group.tail_tokens for group in groups]
        self._reach = [  # from where a cached tail begins to where its first block goes
            group.block_tokens + group.seen - group.tail_tokens for group in groups
        ]
        self._mixed = [number for number, group in enumerate(groups) if len(group.parts) > 1]

    def find(self, way: Way, limit: int) -> tuple[int, int, int]:
        """Blocks that all groups hold, that the context holds, and the last ever marked."""
        path = way.context[:limit]
        missing = self._first[0].take(path) < 0
        found = int(missing.argmax()) if _any(missing) else len(path)
        if not found:
            return 0, 0, 0
        if self._marking is None:
            found = max(0, found - self._dropped)
            adopted = found if found > self._longer else 0
            return adopted, found, adopted
        ready = np.arange(found)  # where all so far hold theirs: few, from the first group on
        for row, (_, part) in enumerate(self._parts, start=1):
            numbers = part.numbers(way)
            if len(numbers) < found:
                ready = ready[ready < len(numbers)]
            ready = ready[self._first[row].take(numbers[ready]) >= 0]
        marked = self._marked.take(self._marking.numbers(way)[:found])
        resumed = int(ready[-1]) + 1 if ready.size else 0
        return resumed, found, max(resumed, last_true(marked))

    def idle_context(self, path: Ints) -> int:
        """Cached blocks of context of a path that nobody uses."""
        return self.queue.idle_blocks(self._first[0].take(path))

    def idle_hit(self, way: Way, resumed: int) -> int:
        """Cached blocks of a hit that nobody uses."""
        return self.queue.idle_blocks(self._hit_entries(way, resumed)[0])

    def _hit_entries(self, way: Way, resumed: int) -> tuple[Ints, list[int], list[int]]:
        """Entries of a hit: all, context first; those of windows and states, and their rows."""
        context = self._first[0].take(way.context[:resumed])
        rows = [
            (row, part)
            for row, (_, part) in enumerate(self._parts, start=1)
            if resumed and part.end_tokens <= 0
        ]
        tails = [int(self._first[row, part.numbers(way)[resumed - 1]]) for row, part in rows]
        beside = np.array(self.queue.with_pieces(tails), np.int64)
        return np.append(context, beside), tails, [row for row, _ in rows]

    def begin(self, way: Way, resumed: int, kept: Kept) -> Running:
        """Let a request use the ``resumed`` blocks it hit; the rest is as ``Running`` says."""
        at = resumed * self.size
        tails: list[list[int]] = [[] for _ in self.groups]
        ends: list[list[int]] = [[] for _ in self.groups]
        entries, found, rows = self._hit_entries(way, resumed)
        for row, entry in zip(rows, found, strict=True):
            number, part = self._parts[row - 1]
            tails[number].append(entry)
            ends[number].append(at + part.end_tokens)
        self.context_used += self.queue.idle_blocks(entries[:resumed])
        self.queue.use(entries)
        self.queue.take(self.recomputed_blocks(resumed))
        return Running(
            way=way,
            kept=kept,
            position=at,
            context=[entries[:resumed]],
            tails=tails,
            ends=ends,
            starts=[group.start(at) for group in self.groups],
        )

    def compute(self, running: Running, ends: Sequence[int]) -> None:
        """Take blocks for chunks of tokens up to these ends and cache what becomes whole.

        Raises:
            OutOfBlocks: There are not so many free ones.
        """
        queue = self.queue
        if not ends:
            return
        longest = max(end - begin for begin, end in pairwise((running.position, *ends)))
        if self.most_new(running.position, ends[-1], longest) > queue.uncached + queue.idle:
            for end in ends:  # what a request has from its hit may go out of windows, too
                self.slide(running)
                queue.take(self.blocks_between(running.position, end))
                self.cache(running, end)
                running.position = end
            return
        self.cache(running, ends[-1])
        queue.flow(np.array([self.go_on(running, end) for end in ends]))

    def cache(self, running: Running, end: int) -> None:
        """Cache what becomes whole up to there."""
        self._cache_context(running, end)
        if self._keeps(running, end):
            self._cache_parts(running, end)

    def go_on(self, running: Running, end: int) -> int:
        """A chunk up to there is computed; returns the blocks that it takes.

        Less those that go out of its windows and hold nothing; the others are given back.
        """
        at = running.position
        gone, freed = self._part(running, self._behind_windows(at))
        if gone:
            freed -= self.queue.give_back(np.array(gone))
        running.position = end
        return self.blocks_between(at, end) - freed

    def _cache_context(self, running: Running, end: int) -> None:
        """Cache blocks of context that become whole."""
        at, path, size = running.position, running.way.context, self.size
        if len(path) < len(running.way.followed):
            # a last whole block with nothing behind it is cached for a hit that nobody asks for
            path = np.append(path, self._nodes)
        running.context.append(self.queue.cache(path[at // size : end // size], 1))
        self.context_used += -(-end // size) - -(-at // size)

    def _keeps(self, running: Running, end: int) -> bool:
        """Whether any windows and states of the tokens up to ``end`` stay cached."""
        keep = running.kept.drafts
        first = bisect_right(keep, (running.position - self._behind) // self.size)
        return first < len(keep) and keep[first] * self.size <= end

    def slide(self, running: Running, position: int | None = None) -> int:
        """Give back what is out of the windows of the next token; how many blocks.

        ``position``: tokens before it; None for those of the prompt that have blocks.
        """
        at = running.position if position is None else position
        return self._release(running, self._behind_windows(at))

    def give_up(self, running: Running, position: int) -> int:
        """Give back what stays cached of what is out of the windows there; how many blocks."""
        gone, _ = self._part(running, self._behind_windows(position))
        return self.queue.give_back(np.array(gone)) if gone else 0

    def _behind_windows(self, position: int) -> list[int]:
        """Tokens before what every group's next token sees."""
        return [(position - seen) // size * size for seen, size in self._windows]

    def next_release(self, running: Running) -> int | None:
        """Tokens behind which a request gives back more that stays cached; None: nothing."""
        due = None
        for (seen, size), reach, begin, ends in zip(
            self._windows, self._reach, running.starts, running.ends, strict=True
        ):
            if ends:
                at = max(begin + size + seen, ends[0] + reach)
                due = at if due is None or at < due else due
        return due

    def held_blocks(self, running: Running) -> int:
        """Blocks of all groups that a request holds of its prompt, shared ones included."""
        return -(-running.position // self.size) + self.tail_blocks(running)

    def recomputed_blocks(self, resumed: int) -> int:
        """Blocks of windows that nobody finds, which a hit takes for itself."""
        return sum(group.needed for group in self.groups if not group.cached) if resumed else 0

    def end(self, running: Running) -> None:
        """Give everything back, context first, last blocks first."""
        context, before = np.concatenate(running.context), self.queue.idle
        own = -(-running.position // self.size) - len(context)
        self.queue.give_back(context[::-1])
        self.queue.uncached += own
        self.context_used -= self.queue.idle - before + own
        sizes = self._sizes[1:]
        self._release(running, [-(-running.position // size) * size for size in sizes])

    def tail_blocks(self, running: Running) -> int:
        """Blocks of windows and states of its prompt that a request holds, shared ones too."""
        position, starts = running.position, running.starts
        return sum(
            [
                max(0, -(-position // size) - begin // size)
                for (_, size), begin in zip(self._windows, starts, strict=True)
            ]
        )

    def admitted_blocks(self, tokens: int, chunk_tokens: int, resumed: int = 0) -> int:
        """Blocks that must be free for a prompt behind a hit, those of the hit left out.

        Windows and states are those of a chunk at most, less those of the whole hit.
        Source: vLLM 0.33, ``SlidingWindowSpec.max_admission_blocks_per_request`` and
        ``get_num_blocks_to_allocate``.
        """
        at, blocks = resumed * self.size, -(-tokens // self.size) - resumed
        for group in self.groups:
            size = group.block_tokens
            most = min(-(-tokens // size), -(-(group.seen + chunk_tokens) // size) + 1)
            before = at if group.cached else group.start(at)
            blocks += max(0, most - before // size)
        return blocks

    def most_tails(self, tokens: int, chunk_tokens: int, resumed: int = 0) -> int:
        """Blocks of windows and states that a prompt holds at most, behind a hit or without one.

        Chunks of ``chunk_tokens`` may begin anywhere; what is behind the last whole block of
        context and its windows has been given back.
        """
        at, blocks = resumed * self.size, 0
        chunk = min(tokens - at, chunk_tokens)
        for group in self.groups:
            size, needed = group.block_tokens, group.needed
            rest = (self.size - 1) // size + 1 if chunk < tokens - at else 0
            whole = -(-tokens // size) - max(0, at // size - needed)
            blocks += min(whole, -(-chunk // size) + rest + needed)
        return blocks

    def most_blocks(self, tokens: int, chunk_tokens: int, resumed: int = 0) -> int:
        """Blocks that a prompt holds at most, those of its hit left out that are context."""
        return -(-tokens // self.size) - resumed + self.most_tails(tokens, chunk_tokens, resumed)

    def most_held(self, cuts: Sequence[int]) -> int:
        """Blocks that a prompt holds at most which is computed from cut to cut."""
        return max(
            -(-end // self.size)
            + sum(
                -(-end // group.block_tokens) - max(0, begin // group.block_tokens - group.needed)
                for group in self.groups
            )
            for begin, end in pairwise(cuts)
        )

    def blocks_between(self, begin: int, end: int) -> int:
        """Blocks of all groups that tokens ``begin`` to ``end`` need."""
        return sum([-(-end // size) - -(-begin // size) for size in self._sizes])

    def most_new(self, begin: int, end: int, chunk_tokens: int) -> int:
        """Blocks that chunks from ``begin`` to ``end`` hold at most beyond those held before.

        Of windows and states those of a chunk and of what it sees.
        """
        blocks = -(-end // self.size) - -(-begin // self.size)
        for seen, size in self._windows:
            whole = -(-end // size) - -(-begin // size)
            blocks += min(whole, -(-(seen + chunk_tokens) // size) + 1)
        return blocks

    def _cache_parts(self, running: Running, end: int) -> None:
        """Cache windows and states of the tokens up to ``end`` where they stay so."""
        tails, size, held = running.kept.tails, self.size, [len(ends) for ends in running.ends]
        for cut in self._cuts:
            numbers = cut.parts[0][1].numbers(running.way)
            done, full = (
                min((place - cut.behind) // size, len(numbers))
                for place in (running.position, end)
            )
            keep = running.kept.drafts if cut.drafts else tails
            kept = keep[bisect_right(keep, done) : bisect_right(keep, full)]
            if not kept:
                continue
            if not kept[0]:  # behind no block at all, where no hit ends
                numbers = np.append(numbers, self._nodes)
            places = _in_array(kept)
            known: Ints = numbers[places - 1]
            behind = (places * size).tolist()
            if cut.marking:
                self._marked[known if keep is tails else known[np.isin(kept, tails)]] = True
            keys, sizes = cut.first + known, cut.sizes.repeat(len(kept))
            entries = self.queue.cache(keys.ravel(), sizes).reshape(keys.shape)
            for (number, part), mine in zip(cut.parts, entries, strict=True):
                running.tails[number] += mine.tolist()
                shift = part.end_tokens
                running.ends[number] += [each + shift for each in behind] if shift else behind
        for number in self._mixed:
            ends, first = running.ends[number], held[number]
            order = sorted(range(first, len(ends)), key=ends.__getitem__)
            for column in (running.tails[number], ends):
                column[first:] = [column[place] for place in order]

    def _release(self, running: Running, upto: Sequence[int]) -> int:
        """Give back the blocks of every group up to its end, the last first; how many."""
        gone, freed = self._part(running, upto)
        self.queue.uncached += freed
        if gone:
            self.queue.uncached -= self.queue.give_back(np.array(gone))
        return freed

    def _part(self, running: Running, upto: Sequence[int]) -> tuple[list[int], int]:
        """Take the blocks of every group up to its end from a request.

        Returns the entries, the last first, and how many blocks they and others are.
        """
        gone, freed = list[int](), 0
        for number, end in enumerate(upto):
            start = running.starts[number]
            if end > start:
                freed += (end - start) // self._sizes[number + 1]
                running.starts[number] = end
                if running.ends[number]:
                    gone += self._let_go(running, number, start, end)
        return gone, freed

    def _let_go(self, running: Running, number: int, start: int, end: int) -> list[int]:
        """Take what a table has cached between two positions from a request, the last first."""
        tails, ends = running.tails[number], running.ends[number]
        queue, size, count = self.queue, self._sizes[number + 1], bisect_right(ends, end)
        held = tails[:count][::-1]
        for entry in queue.in_pieces(held):
            kept = (ends[tails.index(entry)] - start) // size
            place = held.index(entry)
            held[place : place + 1] = [
                piece for after, piece in queue.pieces(entry) if after < kept
            ]
        width, place = self._widths[number], count
        while place < len(ends) and ends[place] - width < end:
            behind_it, kept = (ends[place] - end) // size, (ends[place] - start) // size
            queue.split(tails[place], behind_it)
            held[:0] = [
                piece for after, piece in queue.pieces(tails[place]) if behind_it <= after < kept
            ]
            place += 1
        del tails[:count], ends[:count]
        return held


def _in_array(kept: Sequence[int]) -> Ints:
    """int64: the same numbers."""
    return np.arange(kept.start, kept.stop) if isinstance(kept, range) else np.array(kept)


def _end(part: Part) -> int:
    return part.end_tokens


@dataclass(frozen=True)
class _Cut:
    """Parts of all tables that are cached behind the same blocks of a prompt.

    Attributes:
        behind: Tokens behind such a block that must be there, too.
        drafts: Whether a draft's layer may be among them.
        marking: Whether a hit looks at one of them to say where windows ever were.
        parts: Group and part of each.
        first: int64[parts, 1]: the key of block 0 in each one's row.
        sizes: int64[parts]: blocks of each.
    """

    behind: int
    drafts: bool
    marking: bool
    parts: tuple[tuple[int, Part], ...]
    first: Ints
    sizes: Ints


def _cut_alike(
    parts: Sequence[tuple[int, Part]], keys: int, marking: Part | None
) -> tuple[_Cut, ...]:
    """Parts by group, put together where they are cached together; a row has so many keys."""
    alike: dict[tuple[int, bool, bool], list[tuple[int, int, Part]]] = {}
    for row, (number, part) in enumerate(parts, start=1):
        kind = max(0, part.end_tokens), part.followed, part.drafts
        alike.setdefault(kind, []).append((row, number, part))
    return tuple(
        _Cut(
            behind,
            drafts,
            marking=any(part is marking for _, _, part in rows),
            parts=tuple((number, part) for _, number, part in rows),
            first=np.array([[row * keys] for row, _, _ in rows]),
            sizes=np.array([part.blocks for _, _, part in rows]),
        )
        for (behind, _, drafts), rows in alike.items()
    )
