"""Prompts as paths: the block ids of a whole trace in flat arrays, runs of consecutive ids as one.

An id stands for a block *and its history*, so the paths form a tree in which every id has one
parent. Memory grows with the runs, however many blocks they stand for.

Which blocks of every prompt were seen before, and how long ago: stack distances of all together. A
prompt's blocks are touched last to first, so a parent is always more recent than its children, an
LRU cache evicts children before their parents, and hits end at the first miss by themselves. What
one request touched together stays together in the order: a prompt meets its past as a few
*stretches*, each last touched by one earlier request (its owner), and one number per stretch says
how deep in the order it is. That is Mattson's stack algorithm on stretches instead of blocks:
its cost grows with requests and with how often prompts part, not with their length.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dsv4kv.core.paths import BlockPaths, NumberedPaths
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.traces.request import IdRuns, Request, signed

Ints = NDArray[np.int64]

NO_IDS = (
    "no request has block ids: shared prefixes are unknown. Take a trace with hash_ids, "
    "or make one with: dsv4kv trace synth."
)
BATCH_REQUESTS = 256
"""Requests read together: few, for their prompts may be long."""
_ONE = array("q", [1])


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive requests as columns."""

    arrival_s: NDArray[np.float64]  # float64[requests]
    input_tokens: Ints  # int64[requests]
    output_tokens: Ints  # int64[requests]
    hash_block_tokens: int  # tokens that one id stands for; 0 where no request has ids
    request: Ints  # int64[runs]: whose the run of ids is, from 0; in the order of the prompts
    start: Ints  # int64[runs]: its first id
    count: Ints  # int64[runs]: its length; the run is as long as can be

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """The columns of at least one request."""
        start, count, lengths = array("q"), array("q"), list[int]()
        for each in requests:
            ids = each.prefix_hashes
            if type(ids) is IdRuns:  # isinstance asks Sequence's registry, for every request
                start.frombytes(ids.starts.tobytes())
                count.frombytes(ids.counts.tobytes())
                lengths.append(len(ids.starts))
            else:
                start.extend(signed(ids))
                count.extend(_ONE * len(ids))
                lengths.append(len(ids))
        request = np.repeat(np.arange(len(requests)), lengths)
        return cls(
            np.array([each.arrival_s for each in requests], np.float64),
            np.array([each.input_tokens for each in requests], np.int64),
            np.array([each.output_tokens for each in requests], np.int64),
            next((size for each in requests if (size := each.hash_block_tokens)), 0),
            *join_runs(request, np.frombuffer(start, np.int64), np.frombuffer(count, np.int64)),
        )

    def ids_of_each(self) -> Ints:
        """int64[requests]: ids of every prompt."""
        counts = np.zeros(len(self.arrival_s), np.int64)
        np.add.at(counts, self.request, self.count)
        return counts


def batches_of(requests: Iterable[Request]) -> Iterator[Batch]:
    """The requests as columns, a few hundred at a time."""
    left = iter(requests)
    while rows := list(islice(left, BATCH_REQUESTS)):
        yield Batch.of(rows)


def join_runs(request: Ints, start: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """Join runs of a request where one begins at the id that another ends before; int64[runs]."""
    follows = (request[1:] == request[:-1]) & (start[1:] == start[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(start)])
    joined = np.add.reduceat(count, first) if len(first) else count
    return request[first], start[first], joined


@dataclass(frozen=True)
class PathTable:
    """All prompts of a trace, in order of arrival."""

    block_tokens: int  # tokens an id stands for; the last id of a prompt may stand for fewer
    arrival_s: NDArray[np.float64]  # float64[requests]
    input_tokens: Ints  # int64[requests]
    output_tokens: Ints  # int64[requests]
    counts: Ints  # int64[requests]: ids of every prompt; 0 where it has none
    offsets: Ints  # int64[requests + 1]: where every prompt's runs begin
    starts: Ints  # int64[runs]: first ids
    ends: Ints  # int64[runs]: blocks of the prompt up to the run's end
    path_tokens: Ints = field(init=False)
    """int64[requests]: tokens that ids stand for."""

    def __post_init__(self) -> None:
        covered = np.minimum(self.input_tokens, self.counts * self.block_tokens)
        object.__setattr__(self, "path_tokens", covered)

    def __len__(self) -> int:
        return len(self.counts)

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


def collect_paths(requests: Iterable[Request]) -> PathTable:
    """Read all requests into arrays, in the memory of their runs of ids; raises ``TraceError``."""
    batches = list(batches_of(requests))
    if not any(len(batch.request) for batch in batches):
        raise TraceError(NO_IDS)
    before = np.cumsum([0, *(len(batch.arrival_s) for batch in batches)])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("arrival_s", "input_tokens", "output_tokens", "start", "count")
    }
    columns["request"] = np.concatenate(
        [first + batch.request for first, batch in zip(before, batches, strict=False)]
    )
    size = max(batch.hash_block_tokens for batch in batches)
    return table_of(Batch(**columns, hash_block_tokens=size))


def table_of(batch: Batch) -> PathTable:
    """The table of some requests."""
    counts = batch.ids_of_each()
    before = np.repeat(counts.cumsum() - counts, np.bincount(batch.request, minlength=len(counts)))
    return PathTable(
        block_tokens=batch.hash_block_tokens,
        arrival_s=batch.arrival_s,
        input_tokens=batch.input_tokens,
        output_tokens=batch.output_tokens,
        counts=counts,
        offsets=np.searchsorted(batch.request, np.arange(len(counts) + 1)),
        starts=batch.start,
        ends=batch.count.cumsum() - before,
    )


@dataclass(frozen=True)
class Reuse:
    """Every prompt's past, in blocks of ``grain_tokens``."""

    grain_tokens: int  # tokens of a block
    blocks: Ints  # int64[requests]: blocks of every path
    tokens: Ints  # int64[requests]: tokens of every path; its last block may be partial
    request: Ints  # int64[stretches]: whose past, in rising order
    owner: Ints  # int64[stretches]: the request that touched the stretch last
    begin: Ints  # int64[stretches]: first block of the stretch
    end: Ints  # int64[stretches]: block after it; the next stretch of the request begins there
    # int64[stretches]: blocks more recent than the stretch's first. Block ``b`` of it is found by
    # every cache of at least ``above + b - begin + 1`` blocks
    above: Ints

    def found_blocks(self, capacity_blocks: int | None) -> Ints:
        """int64[requests]: leading blocks found at a capacity (None: unbounded)."""
        length = self.end - self.begin
        if capacity_blocks is not None:
            length = np.clip(min(capacity_blocks, 2**62) - self.above, 0, length)
        found = np.zeros(len(self.blocks), np.int64)
        np.add.at(found, self.request, length)
        return found

    def found_tokens(self, capacity_blocks: int | None) -> Ints:
        """The same in tokens; a prompt found whole counts its partial block too."""
        return np.minimum(self.found_blocks(capacity_blocks) * self.grain_tokens, self.tokens)


def find_reuse(table: PathTable, grain_tokens: int, *, whole_blocks: bool = False) -> Reuse:
    """Find every prompt's past in one pass; arguments and errors as ``number_prompts`` has."""
    paths = _cut(table, grain_tokens, 0, whole_blocks)
    columns = np.array(paths.stretches(), np.int64).reshape(5, -1)
    blocks, tokens = (np.array(each, np.int64) for each in (paths.blocks, paths.tokens))
    return Reuse(grain_tokens, blocks, tokens, *columns)


def number_prompts(
    table: PathTable, block_tokens: int, key_tokens: int = 0, *, whole_blocks: bool = True
) -> NumberedPaths:
    """Prompts of a trace as numbers of blocks of a divisor of its tokens per id, or a multiple.

    ``key_tokens``: tokens after a block that distinguish it, as ``BlockPaths`` says;
    ``whole_blocks``: leave a prompt's partial last block out of the cache. Raises ``ConfigError``.
    """
    return NumberedPaths(_cut(table, block_tokens, key_tokens, whole_blocks))


def _cut(table: PathTable, block_tokens: int, key_tokens: int, whole_blocks: bool) -> BlockPaths:
    ids = table.block_tokens
    if block_tokens <= 0 or (ids % block_tokens and block_tokens % ids):
        raise ConfigError(
            f"blocks of {block_tokens} tokens do not fit ids of {ids} tokens: take "
            f"a divisor of {ids} or a multiple of it."
        )
    return BlockPaths(
        (table.starts.tolist(), table.ends.tolist(), table.offsets.tolist()),
        table.path_tokens.tolist(),
        ids,
        block_tokens,
        whole_blocks=whole_blocks,
        key_tokens=key_tokens,
    )
