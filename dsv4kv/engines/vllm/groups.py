"""Blocks of vLLM's groups over one free queue: context, windows and states of every request.

A request takes blocks chunk by chunk and gives those behind its windows back; several run at once.
With no group but the context it is vLLM's cache of a model that keeps nothing else.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsv4kv.engines.vllm.queue import BlockQueue, any_true
from dsv4kv.engines.vllm.tables import TailGroup, Way, cut_alike
from dsv4kv.prefix.paths import Ints


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
        self._marking = max(
            (part for _, part in self._parts), key=lambda part: part.end_tokens, default=None
        )
        self._marked = np.zeros(nodes + 1, bool)
        self._cuts = cut_alike(self._parts, nodes + 1, self._marking)
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
        found = int(missing.argmax()) if any_true(missing) else len(path)
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


def last_true(flags: NDArray[np.bool_]) -> int:
    """Index after the last True; 0 where there is none."""
    places = flags.nonzero()[0]
    return int(places[-1]) + 1 if len(places) else 0
