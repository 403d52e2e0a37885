"""Prompts as paths: the block ids of a whole trace in flat arrays, runs of consecutive ids as one.

An id stands for a block *and its history*, so the paths form a tree in which every id has one
parent. Memory is that of the runs, however many blocks they stand for.

Which blocks of every prompt were seen before, and how long ago: stack distances of all at once. A
prompt's blocks are touched last to first, so a parent is always more recent than its children, an
LRU cache evicts children before their parents, and hits end at the first miss by themselves. What
one request touched together stays together in the order: a prompt meets its past as a few
*stretches*, each last touched by one earlier request (its owner), and one number per stretch says
how deep in the order it is. That is Mattson's stack algorithm on stretches instead of blocks:
its cost grows with requests and with how often prompts part, not with their length.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Path:
    """One prompt.

    Attributes:
        starts: int64[runs]: first id of every maximal run of consecutive ids.
        ends: int64[runs]: blocks of the path up to the run's end.
        tokens: Tokens the path covers.
    """

    starts: Ints
    ends: Ints
    tokens: int

    def id_at(self, block: int) -> int:
        """The id of a block of the path, counted from 0."""
        run = int(self.ends.searchsorted(block, side="right"))
        before = int(self.ends[run - 1]) if run else 0
        return int(self.starts[run]) + block - before

    def common_blocks(self, other: "Path") -> int:
        """Leading blocks that two paths share."""
        count = min(len(self.starts), len(other.starts))
        if not count:
            return 0
        same = self.starts[:count] == other.starts[:count]
        differ = ~(same & (self.ends[:count] == other.ends[:count]))
        run = int(differ.argmax())
        if not differ[run]:
            return int(self.ends[count - 1])
        if same[run]:
            return min(int(self.ends[run]), int(other.ends[run]))
        return int(self.ends[run - 1]) if run else 0


@dataclass(frozen=True)
class PathTable:
    """All prompts of a trace, in order of arrival.

    Attributes:
        block_tokens: Tokens an id stands for; the last id of a prompt may stand for fewer.
        arrival_s: float64[requests].
        input_tokens: int64[requests].
        output_tokens: int64[requests].
        counts: int64[requests]: ids of every prompt; 0 where it has none.
        offsets: int64[requests + 1]: where every prompt's runs begin.
        starts: int64[runs]: first ids.
        ends: int64[runs]: blocks of the prompt up to the run's end.
    """

    block_tokens: int
    arrival_s: NDArray[np.float64]
    input_tokens: Ints
    output_tokens: Ints
    counts: Ints
    offsets: Ints
    starts: Ints
    ends: Ints
    path_tokens: Ints = field(init=False)
    """int64[requests]: tokens that ids stand for."""

    def __post_init__(self) -> None:
        covered = np.minimum(self.input_tokens, self.counts * self.block_tokens)
        object.__setattr__(self, "path_tokens", covered)

    def __len__(self) -> int:
        return len(self.counts)

    def path(self, request: int) -> Path:
        """The path of one request."""
        low, high = self.offsets[request], self.offsets[request + 1]
        return Path(self.starts[low:high], self.ends[low:high], int(self.path_tokens[request]))

    def select(self, requests: Ints) -> "PathTable":
        """A table of some of the requests, in the order given."""
        runs = np.diff(self.offsets)[requests]
        offsets = np.concatenate([[0], runs.cumsum()])
        places = np.repeat(self.offsets[requests] - offsets[:-1], runs) + np.arange(offsets[-1])
        return PathTable(
            self.block_tokens,
            self.arrival_s[requests],
            self.input_tokens[requests],
            self.output_tokens[requests],
            self.counts[requests],
            offsets,
            self.starts[places],
            self.ends[places],
        )

    @property
    def total_input_tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.input_tokens.sum())

    @property
    def references(self) -> int:
        """Ids of all prompts together."""
        return int(self.counts.sum())


def join_runs(request: Ints, start: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """The same runs, as long as can be: one that goes on where another of its request ends is it.

    Args:
        request: int64[runs]: whose they are, in order.
        start: int64[runs]: first ids.
        count: int64[runs]: lengths.
    """
    follows = (request[1:] == request[:-1]) & (start[1:] == start[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(start)])
    joined = np.add.reduceat(count, first) if len(first) else count
    return request[first], start[first], joined


def check_grain(table: PathTable, grain_tokens: int) -> None:
    """Refuse a block size that neither divides the trace's nor is a multiple of it.

    Raises:
        ConfigError: The sentence names both.
    """
    trace = table.block_tokens
    if grain_tokens <= 0 or (trace % grain_tokens and grain_tokens % trace):
        raise ConfigError(
            f"blocks of {grain_tokens} tokens do not fit ids of {trace} tokens: take "
            f"a divisor of {trace} or a multiple of it."
        )


@dataclass(frozen=True)
class Contradiction:
    """A block id that follows two different blocks.

    Attributes:
        request: The request that contradicts.
        block: Which of its blocks, from 0.
        id: The block's id.
        earlier: A request that has the id with another history; it may also come later.
    """

    request: int
    block: int
    id: int
    earlier: int


def find_contradiction(table: PathTable) -> Contradiction | None:
    """Find an id with two parents; None in a trace whose ids form a tree.

    The parent of an id inside a run is the id before it; only the first of every run has another.
    """
    request, before = _run_places(table)
    last = table.starts + table.ends - before - 1
    parent = np.concatenate([[0], last[:-1]])
    rooted = before == 0
    return _two_parents(table, request, before, parent, rooted) or _inside_a_run(
        table, request, before
    )


def _run_places(table: PathTable) -> tuple[Ints, Ints]:
    """The request of every run, and the blocks before it."""
    request = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    before = np.concatenate([[0], table.ends[:-1]])
    before[table.offsets[request] == np.arange(len(request))] = 0
    return request, before


def _two_parents(
    table: PathTable, request: Ints, before: Ints, parent: Ints, rooted: np.ndarray
) -> Contradiction | None:
    """Runs that begin with the same id after different ones."""
    if not len(table.starts):
        return None
    order = np.argsort(table.starts, kind="stable")
    head = table.starts[order]
    first = np.flatnonzero(np.concatenate([[True], head[1:] != head[:-1]]))
    group = np.repeat(order[first], np.diff(first, append=len(head)))
    differs = (parent[order] != parent[group]) & ~(rooted[order] & rooted[group])
    differs |= rooted[order] != rooted[group]
    if not differs.any():
        return None
    at = int(order[differs].min())
    other = int(group[order == at][0])
    return Contradiction(
        int(request[at]), int(before[at]), int(table.starts[at]), int(request[other])
    )


def _inside_a_run(table: PathTable, request: Ints, before: Ints) -> Contradiction | None:
    """A run that begins inside another: there its first id follows the id before it."""
    counts = table.ends - before
    order = np.argsort(table.starts, kind="stable")
    starts, ends = table.starts[order], (table.starts + counts)[order]
    furthest = np.maximum.accumulate(ends)
    below = np.searchsorted(starts, table.starts, side="left") - 1
    inside = np.flatnonzero((below >= 0) & (furthest[below] > table.starts))
    if not len(inside):
        return None
    at = int(inside.min())
    around = (table.starts < table.starts[at]) & (table.starts + counts > table.starts[at])
    other = int(np.flatnonzero(around)[0])
    return Contradiction(
        int(request[at]), int(before[at]), int(table.starts[at]), int(request[other])
    )


class Shape:
    """Paths cut into blocks of one size, and names for the blocks.

    Attributes:
        blocks: Blocks of every path.
        tokens: int64[requests]: tokens of every path.
        key_tokens: Tokens after a block that distinguish it, too.
    """

    def __init__(
        self, table: PathTable, grain_tokens: int, *, whole_blocks: bool, key_tokens: int = 0
    ) -> None:
        """Cut the paths.

        Args:
            table: The trace.
            grain_tokens: Tokens of a block.
            whole_blocks: Leave a partial last block out.
            key_tokens: Tokens after a block that distinguish it, too; a whole block
                without them is left out. Prompts part where their ids do.
        """
        self._table = table
        self._grain, self.key_tokens = grain_tokens, key_tokens
        self._per_id = max(1, table.block_tokens // grain_tokens)
        tokens = table.path_tokens
        whole = np.maximum(0, tokens - key_tokens) // grain_tokens * grain_tokens
        self.tokens = whole if whole_blocks else tokens
        self._lengths: list[int] = tokens.tolist()
        self.blocks: list[int] = (-(-self.tokens // grain_tokens)).tolist()

    def path(self, request: int) -> Path:
        """The path of a request."""
        return self._table.path(request)

    def common_blocks(self, one: int, other: int, paths: tuple[Path, Path]) -> int:
        """Leading blocks of two requests that hold the same tokens.

        A partial block is shared by equal prompts alone.
        """
        shared = paths[0].common_blocks(paths[1]) * self._table.block_tokens
        shared = min(shared, self._lengths[one], self._lengths[other])
        if shared == self._lengths[one] == self._lengths[other]:
            return self.blocks[one]
        return max(0, shared - self.key_tokens) // self._grain

    def name(self, request: int, path: Path, block: int) -> int:
        """A number that stands for a block and its history, whichever request it is seen in."""
        end = (block + 1) * self._grain
        if end > self._lengths[request]:  # partial: another block than the one it would fill
            last_id, tokens = int(path.ends[-1]) - 1, self._lengths[request] % self._grain
        else:
            last_id, tokens = (end + self.key_tokens - 1) // self._table.block_tokens, 0
        within = path.id_at(last_id) * self._per_id + block % self._per_id
        return within * self._grain + tokens


class Walker:
    """Remembers who touched every block last, by the first block of each stretch alone."""

    def __init__(self, shape: Shape) -> None:
        """Start with no past."""
        self._shape = shape
        self._owner_of: dict[int, int] = {}

    def meet(self, request: int) -> list[tuple[int, int, int]]:
        """The past of a request as (owner, begin, end), first block first; then it owns all of it.

        Call it once for every request, in order.
        """
        shape, owner_of = self._shape, self._owner_of
        path, blocks = shape.path(request), shape.blocks[request]
        past, begin = [], 0
        while begin < blocks:
            owner = owner_of.pop(shape.name(request, path, begin), None)
            if owner is None:
                break
            other = shape.path(owner)
            end = shape.common_blocks(request, owner, (path, other))
            if end < shape.blocks[owner]:  # the owner keeps what follows
                owner_of[shape.name(owner, other, end)] = owner
            past.append((owner, begin, end))
            begin = end
        if blocks:
            owner_of[shape.name(request, path, 0)] = request
        return past


@dataclass(frozen=True)
class Reuse:
    """Every prompt's past, in blocks of ``grain_tokens``.

    Attributes:
        grain_tokens: Tokens of a block.
        blocks: int64[requests]: blocks of every path.
        tokens: int64[requests]: tokens of every path; its last block may be partial.
        request: int64[stretches]: whose past, in rising order.
        owner: int64[stretches]: the request that touched the stretch last.
        begin: int64[stretches]: first block of the stretch.
        end: int64[stretches]: block after it; the next stretch of the request begins there.
        above: int64[stretches]: blocks more recent than the stretch's first. Block ``b`` of it is
            found by every cache of at least ``above + b - begin + 1`` blocks.
    """

    grain_tokens: int
    blocks: Ints
    tokens: Ints
    request: Ints
    owner: Ints
    begin: Ints
    end: Ints
    above: Ints

    def found_blocks(self, capacity_blocks: int | None) -> Ints:
        """int64[requests]: leading blocks that a cache of so many blocks (None: any) holds."""
        length = self.end - self.begin
        if capacity_blocks is not None:
            length = np.clip(min(capacity_blocks, 2**62) - self.above, 0, length)
        found = np.zeros(len(self.blocks), np.int64)
        np.add.at(found, self.request, length)
        return found

    @property
    def different_blocks(self) -> int:
        """Blocks without those that an earlier request had."""
        return int((self.blocks - self.found_blocks(None)).sum())

    def found_tokens(self, capacity_blocks: int | None) -> Ints:
        """The same in tokens; a prompt found whole counts its partial block too."""
        return np.minimum(self.found_blocks(capacity_blocks) * self.grain_tokens, self.tokens)


def find_reuse(
    table: PathTable, grain_tokens: int, *, whole_blocks: bool = False, key_tokens: int = 0
) -> Reuse:
    """Find every prompt's past in one pass.

    Args:
        table: The trace.
        grain_tokens: Tokens of a block.
        whole_blocks: Leave a prompt's partial last block out of the cache.
        key_tokens: Tokens after a block that distinguish it, as ``Shape`` says.

    Raises:
        ConfigError: A block size that does not fit the trace's.
    """
    check_grain(table, grain_tokens)
    shape = Shape(table, grain_tokens, whole_blocks=whole_blocks, key_tokens=key_tokens)
    walker, order = Walker(shape), _Recency(len(table))
    rows: list[tuple[int, int, int, int, int]] = []
    for request in range(len(table)):
        past = walker.meet(request)
        rows += [
            (request, owner, begin, end, order.more_recent(owner)) for owner, begin, end in past
        ]
        for owner, begin, end in past:
            order.add(owner, begin - end)
        order.add(request, shape.blocks[request])
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Reuse(grain_tokens, np.array(shape.blocks, np.int64), shape.tokens, *columns)


class _Recency:
    """How many blocks each request touched last, with sums over later requests (Fenwick tree)."""

    def __init__(self, requests: int) -> None:
        self._tree = [0] * (requests + 1)
        self._total = 0

    def add(self, request: int, blocks: int) -> None:
        tree, at = self._tree, request + 1
        self._total += blocks
        while at < len(tree):
            tree[at] += blocks
            at += at & -at

    def more_recent(self, request: int) -> int:
        tree, at, older = self._tree, request + 1, 0
        while at:
            older += tree[at]
            at &= at - 1
        return self._total - older


@dataclass(frozen=True)
class NumberedPaths:
    """The prompts of a trace as numbers of blocks.

    Attributes:
        paths: int64 for every request: the numbers of its blocks.
        count: How many different ones there are.
    """

    paths: tuple[Ints, ...]
    count: int


def number_paths(reuse: Reuse) -> NumberedPaths:
    """The same as ``number_blocks``, request by request."""
    offsets, numbers, count = number_blocks(reuse)
    paths = tuple(numbers[a:b] for a, b in pairwise(offsets))
    return NumberedPaths(paths, count)


def number_prompts(table: PathTable, block_tokens: int, key_tokens: int = 0) -> NumberedPaths:
    """Prompts of a trace in whole blocks; raises ``ConfigError`` for blocks that do not fit."""
    reuse = find_reuse(table, block_tokens, whole_blocks=True, key_tokens=key_tokens)
    return number_paths(reuse)


def number_blocks(reuse: Reuse) -> tuple[Ints, Ints, int]:
    """Number blocks in order of first use; equal blocks with equal history share a number.

    Returns:
        int64[requests + 1]: where every request's blocks begin; int64[blocks of all requests]: the
        numbers; and how many different ones there are.
    """
    offsets = np.concatenate([[0], reuse.blocks.cumsum()])
    numbers = np.zeros(int(offsets[-1]), np.int64)
    seen = np.zeros(len(reuse.blocks), np.int64)
    np.maximum.at(seen, reuse.request, reuse.end)
    fresh = np.concatenate([[0], (reuse.blocks - seen).cumsum()])
    for request in range(len(reuse.blocks)):
        begin, end = offsets[request] + seen[request], offsets[request + 1]
        numbers[begin:end] = np.arange(fresh[request], fresh[request + 1])
    _copy_stretches(reuse, offsets, numbers)
    return offsets, numbers, int(fresh[-1])


def _copy_stretches(reuse: Reuse, offsets: Ints, numbers: Ints) -> None:
    """In order: an owner's numbers are complete before a later request copies them."""
    to = offsets[reuse.request]
    source = offsets[reuse.owner]
    columns = (to + reuse.begin, to + reuse.end, source + reuse.begin, source + reuse.end)
    for begin, end, low, high in zip(*(column.tolist() for column in columns), strict=True):
        numbers[begin:end] = numbers[low:high]
