"""Prompts as paths: the block ids of a whole trace in flat arrays, runs of consecutive ids as one.

An id stands for a block *and its history*, so the paths form a tree in which every id has one
parent. Memory is that of the runs, however many blocks they stand for.
"""

from dataclasses import dataclass, field

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


def check_grain(table: PathTable, grain_tokens: int) -> None:
    """Refuse a block size that neither divides the trace's nor is a multiple of it.

    Raises:
        ConfigError: The sentence names both.
    """
    trace = table.block_tokens
    if grain_tokens <= 0 or (trace % grain_tokens and grain_tokens % trace):
        raise ConfigError(
            f"blocks of {grain_tokens} tokens do not fit ids that stand for {trace} tokens: take "
            f"a divisor of {trace} or a multiple of it."
        )
