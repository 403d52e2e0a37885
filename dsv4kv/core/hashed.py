"""vLLM's prefix cache: context, windows and states of every request in one block pool.

Cached blocks have reference counts and a free queue; those that hold nothing are counted.

A hit ends at a whole block of context whose last window and state blocks are cached in all groups,
and leaves the last token to be computed.  Blocks behind a window are freed before every step;
which of them stay cached is the retention.  Requests are known by numbers.
Source: vLLM 0.33, ``v1/core/block_pool.py``, ``single_type_kv_cache_manager.py``,
``kv_cache_coordinator.py``, ``v1/core/kv_cache_manager.py`` (``allocate_slots``).
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

from dsv4kv.core.cache import EngineCache
from dsv4kv.core.prompts import kept_places
from dsv4kv.core.served import Hit, Served


class Entry:
    """A cached block, or the blocks of a window that a hit needs together; queued while idle.

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
        for piece in entry.pieces or [entry]:
            if piece.refs == 0:
                self._unlink(piece)
                self.cached -= piece.blocks
                self.shared += piece.blocks
            piece.refs += 1

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


UNBOUNDED_TOKENS = 1 << 40  # tokens of the one block of a ring: more than a request has


@dataclass(eq=False)
class Part:
    """Blocks of a group in a row that are cached, found and evicted together."""

    blocks: int
    end_tokens: int  # end of the last one, from the end of a block of context
    followed: bool  # whether its key covers the tokens behind the block of context, too
    drafts: bool  # whether a draft's layer may be among them
    row: int = 0  # first key of its content


@dataclass(eq=False)
class Group:
    """A table of window or state blocks."""

    block_tokens: int  # tokens of a block
    needed: int  # blocks in a row that a hit needs at its end
    seen: int  # tokens before the next one that it sees; blocks before them are freed
    cached: bool  # whether hits find them; else a request that hits computes the needed ones again
    parts: list[Part]  # parts that are cached, in order

    def start(self, position: int) -> int:
        """Tokens before the blocks that are held at ``position``."""
        return max(0, position - self.seen) // self.block_tokens * self.block_tokens


def cut_groups(
    tables: list[tuple[int, int, int, bool, bool, bool]], key_tokens: int, drops: bool
) -> list[Group]:
    """Groups with what is cached and found of them together.

    ``tables``: tokens of a block, blocks needed, tokens seen, whether cached, a ring, a window.
    Where keys cover ``key_tokens`` after a block, prompts that diverge after a tail share all of
    its blocks but the last. Where a hit drops its last block for a draft's layer, windows need one
    block more, after the hit. Windows of draft layers are in the groups that are there.
    """
    groups = list[Group]()
    for size, needed, seen, cached, ring, window in tables:
        parts = [Part(needed, 0, False, False)] if cached else list[Part]()
        if ring:  # one block of a request, whatever its length
            groups.append(Group(UNBOUNDED_TOKENS, 1, UNBOUNDED_TOKENS, False, []))
            continue
        if cached and key_tokens and needed > 1:
            parts = [Part(needed - 1, -size, True, False), Part(1, 0, False, False)]
        elif cached and drops and window:
            ends = range((1 - needed) * size, 1, size)
            parts = [Part(1, end, False, True) for end in ends] + [Part(1, size, True, True)]
        groups.append(Group(size, needed, seen, cached, parts))
    return groups


class BlockTable:
    """Blocks of a group that a request holds."""

    def __init__(self, group: Group, start: int) -> None:
        self.start = start  # tokens before them
        self.group = group
        self.ends: list[int] = []  # tokens at which cached entries end
        self.entries: list[Entry] = []
        self.first = 0  # how many leading ones have been freed


class Held:
    """Blocks of a running request."""

    def __init__(self, path: list[int], followed: list[int], position: int) -> None:
        self.path = path  # numbers of its whole blocks of context: equal numbers, equal history
        self.followed = followed  # numbers that also distinguish the tokens behind
        self.position = position  # tokens that have blocks
        self.context: list[Entry] = []
        self.tables: list[BlockTable] = []  # its blocks of every group
        self.kept: list[int] = []  # blocks of context behind which windows stay cached, rising
        self.kept_drafts: list[int] = []  # the same in parts that have a draft's layer
        self.prompt = position  # tokens of its prompt with blocks
        self.loaded = 0  # tokens before those that a tier brings back
        self.slid = 0  # position of its last step
        # it decodes and holds no cached windows: its position says what a step needs and frees
        self.steady = False


_NOBODY = Held([], [], 0)


class HashedCache(BlockPool):
    """A block pool with vLLM's groups; see the module."""

    reserves = True

    def __init__(
        self,
        blocks: int,  # blocks of its pool
        block_tokens: int,  # tokens of a block of context
        groups: list[Group],  # windows and states
        # ``Held.path`` and ``Held.followed`` of a request
        path_of: Callable[[int], tuple[list[int], list[int]]],
        numbers: int,  # how many different numbers there are
        *,
        # windows stay cached at every multiple of this many tokens, at the end of a prompt and
        # where a hit ran out of them; 0: these two only; None: at every block
        retention: int | None,
        chunk_tokens: int,  # max tokens of a prompt in a step
        drops: bool = False,  # whether a hit drops its last block for a draft's layer
        # tokens at a hit's end that are computed again; a hit that is not longer is none
        replayed_tokens: int = 0,
        step_tokens: int = 1,  # tokens of a decode step, drafts included
        hit_blocks: int = 1,  # blocks that a hit is a multiple of, where there are no groups
    ) -> None:
        super().__init__(blocks, block_tokens, chunk_tokens)
        self.groups = groups  # windows and states
        self.replayed_tokens = replayed_tokens
        self._path_of, self._numbers = path_of, numbers
        self._retention, self._drops, self._step = retention, drops, step_tokens
        self._hit_blocks = hit_blocks
        self._parts = [part for group in groups for part in group.parts]
        for row, part in enumerate(self._parts, start=1):
            part.row = row * (numbers + 1)
        self._marking: Part | None = None
        for part in self._parts:
            if self._marking is None or part.end_tokens > self._marking.end_tokens:
                self._marking = part
        self._marked: set[int] = set()
        self._running: list[Held] = []  # by number; of the others ``_NOBODY``
        self._asked = (-1, 0, 0)
        self._found = Hit(0, 0, 0)
        self._most: list[int] = []  # most blocks in a decode step, by tokens
        self._needs: list[int] = []  # blocks that a decode step needs, by tokens in a period
        self._frees: list[int] = []  # blocks that it frees before
        self._waits: list[int] = []  # steps until the next that needs or frees one
        self._fill_tables()

    def state(self) -> int:
        return self.changes * (self.total + 1) + self.available

    def find(self, request: int, tokens: int) -> Hit:
        """What a prompt would hit; looked up once for as long as nothing is cached or evicted."""
        asked = (request, tokens, self.changes)
        if asked != self._asked:
            path, followed = self._path_of(request)
            self._asked = asked
            limit = (tokens - 1) // self.block_tokens
            self._found = Hit(*self._look_up(path, followed, limit))
        return self._found

    def _look_up(self, path: list[int], followed: list[int], limit: int) -> tuple[int, int, int]:
        cached = self.entries
        found, high = 0, min(limit, len(path))
        while found < high:  # who holds a block holds all before it, and frees these after it
            middle = (found + high + 1) // 2
            if path[middle - 1] in cached:
                found = middle
            else:
                high = middle - 1
        if self._marking is None:
            if self._drops and not self.groups:
                found = max(0, found - 1)
            longer = self.replayed_tokens // self.block_tokens
            resumed = found if found > longer or not self.replayed_tokens else 0
            resumed -= resumed % self._hit_blocks
            return resumed, found, resumed
        resumed = found
        while resumed > 0 and not self._has_windows(path, followed, resumed):
            resumed -= 1
        marks = followed if self._marking.followed else path
        marked = min(found, len(marks))
        while marked > resumed and marks[marked - 1] not in self._marked:
            marked -= 1
        return resumed, found, max(resumed, marked)

    def _has_windows(self, path: list[int], followed: list[int], end: int) -> bool:
        cached = self.entries
        for part in self._parts:
            numbers = followed if part.followed else path
            if end > len(numbers) or part.row + numbers[end - 1] not in cached:
                return False
        return True

    def refuses(self, tokens: int) -> str:
        most = self.admitted_blocks(tokens, 0)
        if tokens:  # of a decode step
            periods = max(0, (tokens - 1) // self._period - 1)
            grown = periods * (self._period // self.block_tokens)
            decoding = self._most[tokens - 1 - periods * self._period] + grown + self._rings
            most = max(most, decoding)
        if most <= self.total:
            return ""
        chunk = ", with windows and states of a chunk" if self.groups else ""
        return f"longer than all blocks together{chunk}"

    def fits(self, request: int, tokens: int, promised: int, step_tokens: int) -> bool:
        """Whether a whole prompt has room now, and its first chunk of ``step_tokens`` at most."""
        resumed = self.find(request, tokens).resumed
        at = resumed * self.block_tokens
        first = self._between(at, min(tokens, at + step_tokens)) + self._recomputed(resumed)
        room = self.available - promised - max(self.admitted_blocks(tokens, resumed), first)
        most = resumed + sum([part.blocks for part in self._parts])
        return most <= room or self._idle_hit(request, resumed) <= room

    def admitted_blocks(self, tokens: int, resumed: int) -> int:
        """Blocks that must be free for a prompt behind a hit.

        Source: vLLM 0.33, ``SlidingWindowSpec.max_admission_blocks_per_request`` and
        ``get_num_blocks_to_allocate``.
        """
        at = resumed * self.block_tokens
        blocks = -(-tokens // self.block_tokens) - resumed
        for group in self.groups:
            size = group.block_tokens
            most = min(-(-tokens // size), -(-(group.seen + self.chunk_tokens) // size) + 1)
            before = at if group.cached else group.start(at)
            blocks += max(0, most - before // size)
        return blocks

    def _recomputed(self, resumed: int) -> int:
        """Blocks of windows that no hit finds, which a request that hits takes for itself."""
        if not resumed:
            return 0
        return sum([group.needed for group in self.groups if not group.cached])

    def _idle_hit(self, request: int, resumed: int) -> int:
        """Blocks of a hit that no request uses."""
        if not resumed:
            return 0
        path, followed = self._path_of(request)
        keys, idle = path[:resumed], 0
        for part in self._parts:
            if part.end_tokens <= 0:
                numbers = followed if part.followed else path
                keys.append(part.row + numbers[resumed - 1])
        for key in keys:
            entry = self.entries[key]
            for piece in entry.pieces or [entry]:
                if not piece.refs:
                    idle += piece.blocks
        return idle

    def begin(self, request: int, tokens: int) -> Hit:
        hit = self.find(request, tokens)
        resumed = hit.resumed
        at = resumed * self.block_tokens
        path, followed = self._path_of(request)
        held = Held(path, followed, at)
        for number in path[:resumed]:
            entry = self.entries[number]
            self.touch(entry)
            held.context.append(entry)
        for group in self.groups:
            table = BlockTable(group, group.start(at))
            if resumed:
                for part in group.parts:
                    if part.end_tokens <= 0:
                        numbers = followed if part.followed else path
                        entry = self.entries[part.row + numbers[resumed - 1]]
                        self.touch(entry)
                        table.entries.append(entry)
                        table.ends.append(at + part.end_tokens)
            held.tables.append(table)
        self.get_new_blocks(self._recomputed(resumed))
        self._plan_windows(held, tokens, resumed, hit.found)
        self._running += [_NOBODY] * (request + 1 - len(self._running))
        self._running[request] = held
        return hit

    def _plan_windows(self, held: Held, tokens: int, resumed: int, found: int) -> None:
        size, most = self.block_tokens, max(len(held.path), len(held.followed))
        if self._retention is None or not self._parts:
            return
        last, whole = (tokens - 1) // size, tokens // size
        special = kept_places(most, self._retention // size, None)
        special |= {max(0, last - 1), max(0, whole - 1)} if self._drops else {last}
        if found > resumed:
            special.add(found)
        held.kept = held.kept_drafts = sorted([end for end in special if end <= most])
        if self._drops and found != resumed:
            held.kept_drafts = sorted({*held.kept, found - 1})

    def lacks(self, request: int, end: int) -> int:
        held = self._running[request]
        if end <= held.position:
            return 0
        self._slide(held, held.position)
        return max(0, self._between(held.position, end) - self.available)

    def compute(self, request: int, position: int) -> int:
        held = self._running[request]
        if position > held.position:
            self._slide(held, held.position)
            self.get_new_blocks(self._between(held.position, position))
            self._cache_context(held, position)
            self._cache_windows(held, position)
            held.position = held.prompt = position
        return min(max(position, held.position) // self.block_tokens, len(held.path))

    def _cache_context(self, held: Held, end: int) -> None:
        size, path = self.block_tokens, held.path
        for block in range(held.position // size, end // size):
            if block < len(path):
                held.context.append(self.cache(path[block], 1))
            elif block == len(path) < len(held.followed):
                # a last whole block with no token behind it: its key is never looked up
                held.context.append(self.cache(self._numbers, 1))

    def _cache_windows(self, held: Held, end: int, alone: int = 0) -> None:
        """``alone``: the one place whose windows are there, as a tier brought them back."""
        size, marking = self.block_tokens, self._marking
        for table in held.tables:
            before = len(table.ends)
            for part in table.group.parts:
                numbers = held.followed if part.followed else held.path
                behind = max(0, part.end_tokens)
                done = min((held.position - behind) // size, len(numbers))
                full = min((end - behind) // size, len(numbers))
                if self._retention is None:
                    places = list(range(max(0, done) + 1, full + 1))
                else:
                    keep = held.kept_drafts if part.drafts else held.kept
                    places = keep[bisect_right(keep, done) : bisect_right(keep, full)]
                if alone:
                    places = [alone] if alone in places else []
                for place in places:
                    number = numbers[place - 1] if place else self._numbers
                    if part is marking and (self._retention is None or place in held.kept):
                        self._marked.add(number)
                    table.entries.append(self.cache(part.row + number, part.blocks))
                    table.ends.append(place * size + part.end_tokens)
            if len(table.group.parts) > 1 and len(table.ends) > before + 1:
                ends, entries = table.ends[before:], table.entries[before:]
                order = sorted(range(len(ends)), key=ends.__getitem__)
                table.ends[before:] = [ends[place] for place in order]
                table.entries[before:] = [entries[place] for place in order]

    def reserve(self, request: int, position: int) -> int:
        held, place = self._running[request], position % self._period
        steady, needed = held.steady, self._needs[place]
        if not steady:
            steady = self._slide(held, position) and position > self._seen and self._step == 1
            needed = self._between(held.position, position + self._step)
        elif held.slid < position:
            self.uncached += self._frees[place]
        held.slid = position
        if needed > self.uncached + self.cached:
            return -1
        self.alloc(needed)
        held.steady, held.position = steady, position + self._step
        if self._step > 1:
            return 0  # drafts: it needs or frees something in every step
        return position + 1 + self._waits[(position + 1) % self._period]

    def decoded(self, due: Sequence[Served]) -> None:
        """Requests took a step: free what it reserved for drafts that were rejected."""
        for request in due:
            held = self._running[request.number]
            if held.position > request.position:
                self.uncached += self._between(request.position, held.position)
                held.position = request.position

    def load(self, request: int, begin: int, end: int) -> None:
        held, size = self._running[request], self.block_tokens
        at, position = held.position, end * size
        held.loaded = at
        blocks = end - -(-at // size)
        for table in held.tables:
            size, start = table.group.block_tokens, table.group.start(position)
            before = -(-at // size) * size
            self._release(table, min(start, before))
            table.start = max(table.start, start)
            blocks += -(-position // size) - max(before, start) // size
        self.get_new_blocks(blocks)
        held.position = position

    def loaded(self, request: int, begin: int, end: int, position: int) -> None:
        held, position = self._running[request], end * self.block_tokens
        held.position = held.loaded
        self._cache_context(held, position)
        self._cache_windows(held, position, end)
        held.position = held.prompt = position

    def end(self, request: int, decoded_blocks: int = 0, position: int = 0) -> int:
        """Free everything, context first, last blocks first; returns the blocks that it cached."""
        held = self._running[request]
        self._running[request] = _NOBODY
        if held.steady:
            for table in held.tables:
                table.start = table.group.start(held.slid)
        for entry in reversed(held.context):
            self.free(entry)
        self.uncached += -(-held.position // self.block_tokens) - len(held.context)
        for table in held.tables:
            size = table.group.block_tokens
            self._release(table, -(-held.position // size) * size)
        return min(held.prompt // self.block_tokens, len(held.path))

    def _between(self, begin: int, end: int) -> int:
        """Blocks of all groups that tokens ``begin`` to ``end`` need."""
        size = self.block_tokens
        blocks = -(-end // size) - -(-begin // size)
        for group in self.groups:
            size = group.block_tokens
            blocks += -(-end // size) - -(-begin // size)
        return blocks

    def _slide(self, held: Held, position: int) -> bool:
        """Free what is behind windows; returns whether no cached window is left."""
        passed = True
        for table in held.tables:
            group = table.group
            upto = (position - group.seen) // group.block_tokens * group.block_tokens
            if upto > table.start:
                self._release(table, upto)
            passed = passed and table.first == len(table.ends)
        return passed

    def _release(self, table: BlockTable, upto: int) -> None:
        """Free the blocks of a table up to there, the last first."""
        size, start = table.group.block_tokens, table.start
        if upto <= start:
            return
        self.uncached += (upto - start) // size
        table.start = upto
        ends, entries = table.ends, table.entries
        count, first = len(ends), table.first
        last = first
        while last < count and ends[last] <= upto:
            last += 1
        past = last
        while past < count and ends[past] - table.group.needed * size < upto:
            self.split(entries[past], (ends[past] - upto) // size)
            past += 1
        for place in range(past - 1, first - 1, -1):
            entry = entries[place]
            nearest, farthest = (ends[place] - upto) // size, (ends[place] - start) // size
            for piece in entry.pieces or [entry]:
                if nearest <= piece.after < farthest:
                    self.uncached -= piece.blocks
                    self.free(piece)
        table.first = last

    def _fill_tables(self) -> None:
        groups = [group for group in self.groups if group.block_tokens < UNBOUNDED_TOKENS]
        self._rings = len(self.groups) - len(groups)
        period = lcm(self.block_tokens, *[group.block_tokens for group in groups])
        self._seen = max([group.seen for group in groups], default=0)
        self._period = period * (1 + self._seen // period)
        most = 0
        for tokens in range(2 * self._period):
            end = tokens + self._step
            held = -(-end // self.block_tokens)
            for group in groups:
                size = group.block_tokens
                held += -(-end // size) - max(tokens - group.seen, 0) // size
            most = max(most, held)
            self._most.append(most)
        for tokens in range(self._period):
            needs, frees = int(tokens % self.block_tokens == 0), 0
            for group in groups:
                needs += tokens % group.block_tokens == 0
                frees += (tokens - group.seen) % group.block_tokens == 0
            self._needs.append(needs)
            self._frees.append(frees)
        wait = 0
        self._waits = [0] * self._period
        for tokens in range(2 * self._period - 1, -1, -1):
            place = tokens % self._period
            wait = 0 if self._needs[place] or self._frees[place] else wait + 1
            self._waits[place] = wait

    def refuses_alone(self, request: int, tokens: int) -> bool:
        hit = self.find(request, tokens)
        before = hit.resumed * self.block_tokens
        for end in self.chunk_ends(self.computed_from(hit), tokens):
            held = -(-end // self.block_tokens)
            for group in self.groups:
                size = group.block_tokens
                held += -(-end // size) - max(0, before // size - group.needed)
            if held > self.total:
                return True
            before = end
        return False
