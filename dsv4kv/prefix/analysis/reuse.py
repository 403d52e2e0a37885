"""Which blocks of every prompt were seen before, and how long ago: stack distances of all at once.

A prompt's blocks are touched last to first, so a parent is always more recent than its children,
a least-recently-used cache loses leaves first, and hits end at the first miss by themselves.
What one request touched together stays together in the order: a prompt meets its past as a few
*stretches*, each last touched by one earlier request (its owner), and one number per stretch says
how deep in the order it lies. That is Mattson's stack algorithm on stretches instead of blocks:
its cost grows with requests and with how often prompts part, not with their length.
"""

from dataclasses import dataclass

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints, PathTable, check_grain
from dsv4kv.prefix.analysis.walk import Shape, Walker


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
            length = np.clip(capacity_blocks - self.above, 0, length)
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
        key_tokens: Tokens behind a block that it is told apart by, as ``Shape`` says.

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
