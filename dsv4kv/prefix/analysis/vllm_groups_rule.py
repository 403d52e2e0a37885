"""vLLM's prefix cache with DeepSeek-V4's groups, one request at a time, in chunks of prompt.

Compressed entries are one group; windows and compressor states are others, with smaller blocks
from the same pool. A hit ends at a whole block of context whose last window and state blocks are
all cached. Blocks behind the window are given back after every chunk; which of them stay cached is
the retention: every boundary, one in an interval, or only where a prompt ends and where a hit ran
out of windows. The blocks of one table that a hit needs at its end are taken for one entry, though
an engine may find some of them in an older copy and some in a newer.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, OutOfBlocks
from dsv4kv.prefix.analysis.block_queue import BlockQueue, last_true
from dsv4kv.prefix.analysis.nodes import number_blocks
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import Reuse


@dataclass(frozen=True)
class TailGroup:
    """A table of window or state blocks.

    Attributes:
        block_tokens: Tokens of one of its blocks.
        needed: Blocks in a row that a hit needs at its end.
    """

    block_tokens: int
    needed: int

    @property
    def tail_tokens(self) -> int:
        """Tokens that the needed blocks cover."""
        return self.needed * self.block_tokens


@dataclass(frozen=True)
class GroupHits:
    """What requests hit, in blocks of context.

    Attributes:
        resumed: int64[requests]: where all groups agreed.
        found: int64[requests]: what the context group alone held.
        marked: int64[requests]: the last boundary up to there whose windows were ever cached.
    """

    resumed: Ints
    found: Ints
    marked: Ints


class GroupPool:
    """All groups' blocks in one queue; keys are numbers of context blocks, group by group."""

    def __init__(
        self, blocks: int, nodes: int, context_tokens: int, groups: tuple[TailGroup, ...]
    ):
        """An empty cache; ``nodes`` is the number of different context blocks in the trace."""
        self._queue = BlockQueue(blocks, nodes * (1 + len(groups)))
        self._nodes, self._size, self._groups = nodes, context_tokens, groups
        self._first = self._queue.first.reshape(1 + len(groups), nodes)
        self._marked = np.zeros(nodes, bool)

    def find(self, path: Ints) -> tuple[int, int, int]:
        """Blocks that all groups hold, that the context holds, and the last ever marked."""
        missing = self._first[0, path] < 0
        found = int(missing.argmax()) if missing.any() else len(path)
        path = path[:found]
        ready = np.logical_and.reduce(self._first[1:, path] >= 0, axis=0)
        return last_true(ready), found, last_true(self._marked[path])

    def serve(
        self, path: Ints, tokens: int, resumed: int, chunk_tokens: int, keep: NDArray[np.bool_]
    ) -> None:
        """Run one request.

        Args:
            path: Numbers of its full context blocks.
            tokens: Length of the prompt.
            resumed: Blocks it hit.
            chunk_tokens: Tokens computed at once, whole blocks.
            keep: bool[full blocks]: whether the windows at the end of a block stay cached.
        """
        queue, size = self._queue, self._size
        ends = path[:resumed][-1:]
        context = [self._first[0, path[:resumed]]]
        tails = self._first[1:, ends]
        queue.use(np.concatenate([context[0], tails.ravel()]))
        bounds = np.full(len(ends), resumed * size)
        starts = [resumed * size - len(ends) * group.tail_tokens for group in self._groups]
        for at in range(resumed * size, tokens, chunk_tokens):
            behind = int((bounds < at).sum())
            for number, group in enumerate(self._groups):
                edge = max(starts[number], at - group.tail_tokens)
                self._release(group, tails[number, :behind], starts[number], edge)
                starts[number] = edge
            end = min(at + chunk_tokens, tokens)
            queue.take(self._blocks_between(at, end))
            done, full = at // size, end // size
            context.append(queue.cache(path[done:full], 1))
            kept = np.flatnonzero(keep[done:full]) + done
            new = [
                queue.cache(path[kept] + (1 + number) * self._nodes, group.needed)
                for number, group in enumerate(self._groups)
            ]
            tails = np.concatenate([tails[:, behind:], np.array(new)], axis=1)
            bounds = np.concatenate([bounds[behind:], (kept + 1) * size])
            self._marked[path[kept]] = True
        queue.give_back(np.concatenate(context)[::-1])
        queue.uncached += tokens % size > 0
        for number, group in enumerate(self._groups):
            end = -(-tokens // group.block_tokens) * group.block_tokens
            self._release(group, tails[number], starts[number], end)

    def most_blocks(self, tokens: int, chunk_tokens: int) -> int:
        """Blocks that a prompt holds at most, with nothing cached before it."""
        context = -(-tokens // self._size)
        chunk = min(tokens, chunk_tokens)
        tails = sum(-(-chunk // g.block_tokens) + g.needed for g in self._groups)
        return context + tails

    def _blocks_between(self, begin: int, end: int) -> int:
        """Blocks of all groups that tokens ``begin`` to ``end`` need."""
        sizes = [self._size, *(group.block_tokens for group in self._groups)]
        return sum(-(-end // size) - -(-begin // size) for size in sizes)

    def _release(self, group: TailGroup, tails: Ints, begin: int, end: int) -> None:
        """Give back all blocks of a range: the kept tails, last first, and what is not cached."""
        self._queue.give_back(tails[::-1])
        self._queue.uncached += (end - begin) // group.block_tokens - group.needed * len(tails)


def replay_vllm_groups(
    table: PathTable,
    reuse: Reuse,
    capacity_blocks: int,
    groups: tuple[TailGroup, ...],
    *,
    retention_tokens: int | None,
    chunk_tokens: int,
) -> GroupHits:
    """Serve a trace.

    Args:
        table: The trace.
        reuse: Its reuse in whole blocks of context.
        capacity_blocks: Blocks of the pool.
        groups: Tables of windows and states.
        retention_tokens: Windows stay cached at every multiple of it, at the end of a prompt and
            where a hit ran out of them; 0 for these two only; None at every block.
        chunk_tokens: Tokens of a prompt computed at once.

    Raises:
        ConfigError: Chunks or intervals that are no whole blocks, or a pool too small for a chunk
            of the longest prompt.
    """
    size = reuse.grain_tokens
    if chunk_tokens % size or (retention_tokens or 0) % size:
        raise ConfigError(
            f"chunks of {chunk_tokens} tokens and a retention of {retention_tokens} must be whole "
            f"blocks of {size} tokens."
        )
    offsets, numbers, nodes = number_blocks(reuse)
    pool = GroupPool(capacity_blocks, nodes, size, groups)
    hits = np.zeros((3, len(table)), np.int64)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        path = numbers[offsets[request] : offsets[request + 1]]
        limit = (tokens - 1) // size
        resumed, found, marked = pool.find(path[:limit])
        special = (limit, found if found > resumed else 0)
        keep = _kept_ends(len(path), size, retention_tokens, special)
        try:
            pool.serve(path, tokens, resumed, chunk_tokens, keep)
        except OutOfBlocks:
            raise ConfigError(
                f"a pool of {capacity_blocks:,} blocks is too small: a prompt of {tokens:,} "
                f"tokens needs {pool.most_blocks(tokens, chunk_tokens):,} at once, windows and "
                f"states of chunks of {chunk_tokens:,} tokens included. Take a larger pool or "
                "smaller chunks."
            ) from None
        hits[:, request] = resumed, found, marked
    return GroupHits(*hits)


def _kept_ends(
    blocks: int, size: int, retention_tokens: int | None, special: tuple[int, int]
) -> NDArray[np.bool_]:
    """bool[blocks]: whether the windows at the end of a block stay cached.

    ``special`` are numbers of blocks whose end is kept whatever the interval; 0 is none.
    """
    if retention_tokens is None:
        return np.ones(blocks, bool)
    ends = np.arange(1, blocks + 1)
    keep = np.isin(ends, special)
    if retention_tokens:
        keep |= ends * size % retention_tokens == 0
    return keep
