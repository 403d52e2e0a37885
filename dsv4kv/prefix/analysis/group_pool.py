"""Blocks of vLLM's groups over one free queue: context, windows and states of every request.

A request takes blocks chunk by chunk and gives those behind its windows back; several run at once.
With no group beside the context it is vLLM's cache of a model that keeps nothing else.
Source: vLLM 0.33, ``single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dsv4kv.prefix.analysis.block_queue import BlockQueue, last_true
from dsv4kv.prefix.analysis.paths import Ints


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
        rejected: bool[requests]: whether the request can never run; then it hits nothing.
    """

    resumed: Ints
    found: Ints
    marked: Ints
    rejected: NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Running:
    """A request in the pool.

    Attributes:
        path: int64: numbers of the whole context blocks of its prompt.
        keep: bool[blocks of the path]: whether the windows at the end of a block stay cached.
        position: Tokens that have blocks.
        context: Entries of its cached context blocks, in the order they came.
        tails: int64[groups, kept]: entries of the windows it holds that stay cached.
        bounds: int64[kept]: tokens at which these end.
        starts: Where the blocks of every group that it still holds begin, in tokens.
    """

    path: Ints
    keep: NDArray[np.bool_]
    position: int
    context: list[Ints]
    tails: Ints
    bounds: Ints
    starts: list[int]


class GroupPool:
    """All groups' blocks in one queue; keys are numbers of context blocks, group by group.

    Attributes:
        queue: The blocks.
        size: Tokens of a block of context.
        context_used: Blocks of context that requests hold, shared ones once.
    """

    def __init__(
        self, blocks: int, nodes: int, context_tokens: int, groups: tuple[TailGroup, ...]
    ):
        """An empty cache; ``nodes`` is the number of different context blocks in the trace."""
        self.queue = BlockQueue(blocks, nodes * (1 + len(groups)))
        self.size = context_tokens
        self.context_used = 0
        self._nodes, self._groups = nodes, groups
        self._first = self.queue.first.reshape(1 + len(groups), nodes)
        self._marked = np.zeros(nodes, bool)

    def find(self, path: Ints) -> tuple[int, int, int]:
        """Blocks that all groups hold, that the context holds, and the last ever marked."""
        missing = self._first[0, path] < 0
        found = int(missing.argmax()) if missing.any() else len(path)
        path = path[:found]
        ready = np.logical_and.reduce(self._first[1:, path] >= 0, axis=0)
        return last_true(ready), found, last_true(self._marked[path])

    def idle_context(self, path: Ints) -> int:
        """Cached blocks of context of a path that nobody uses."""
        return self.queue.idle_blocks(self._first[0, path])

    def begin(self, path: Ints, resumed: int, keep: NDArray[np.bool_]) -> Running:
        """Let a request use the ``resumed`` blocks it hit; the rest is as ``Running`` says."""
        found, ends = path[:resumed], path[:resumed][-1:]
        context, tails = self._first[0, found], self._first[1:, ends]
        self.context_used += self.queue.idle_blocks(context)
        self.queue.use(np.concatenate([context, tails.ravel()]))
        at = resumed * self.size
        return Running(
            path=path,
            keep=keep,
            position=at,
            context=[context],
            tails=tails,
            bounds=np.full(len(ends), at),
            starts=[at - len(ends) * group.tail_tokens for group in self._groups],
        )

    def compute(self, running: Running, end: int) -> None:
        """Take blocks for the tokens up to ``end`` and cache what becomes whole.

        Raises:
            OutOfBlocks: There are not so many free ones.
        """
        self.slide(running)
        at, path, queue = running.position, running.path, self.queue
        queue.take(self.blocks_between(at, end))
        done, full = (min(place // self.size, len(path)) for place in (at, end))
        running.context.append(queue.cache(path[done:full], 1))
        kept = np.flatnonzero(running.keep[done:full]) + done
        new = [
            queue.cache(path[kept] + (1 + number) * self._nodes, group.needed)
            for number, group in enumerate(self._groups)
        ]
        tails = np.array(new, np.int64).reshape(len(new), len(kept))
        running.tails = np.concatenate([running.tails, tails], axis=1)
        running.bounds = np.concatenate([running.bounds, (kept + 1) * self.size])
        running.position = end
        self.context_used += -(-end // self.size) - -(-at // self.size)
        self._marked[path[kept]] = True

    def slide(self, running: Running) -> None:
        """Give back what lies behind the window of the last whole block of context."""
        at = running.position // self.size * self.size
        behind = int((running.bounds < at).sum())
        for number, group in enumerate(self._groups):
            edge = max(running.starts[number], at - group.tail_tokens)
            self._release(running, number, behind, edge)
        running.tails, running.bounds = running.tails[:, behind:], running.bounds[behind:]

    def end(self, running: Running) -> None:
        """Give everything back, context first, last blocks first."""
        context, before = np.concatenate(running.context), self.queue.idle
        own = -(-running.position // self.size) - len(context)
        self.queue.give_back(context[::-1])
        self.queue.uncached += own
        self.context_used -= self.queue.idle - before + own
        for number, group in enumerate(self._groups):
            end = -(-running.position // group.block_tokens) * group.block_tokens
            self._release(running, number, len(running.bounds), end)

    def tail_blocks(self, running: Running) -> int:
        """Blocks of windows and states that a request holds, shared ones included."""
        position, starts = running.position, running.starts
        return sum(
            -(-position // group.block_tokens) - begin // group.block_tokens
            for group, begin in zip(self._groups, starts, strict=True)
        )

    def most_tails(self, tokens: int, chunk_tokens: int) -> int:
        """Blocks of windows and states that a prompt holds at most.

        Chunks of ``chunk_tokens`` may begin anywhere; what is behind the last whole block of
        context and its windows has been given back.
        """
        chunk, blocks = min(tokens, chunk_tokens), 0
        for group in self._groups:
            rest = (self.size - 1) // group.block_tokens + 1 if chunk < tokens else 0
            whole = -(-tokens // group.block_tokens)
            blocks += min(whole, -(-chunk // group.block_tokens) + rest + group.needed)
        return blocks

    def most_blocks(self, tokens: int, chunk_tokens: int) -> int:
        """Blocks that a prompt holds at most, with nothing cached before it."""
        return -(-tokens // self.size) + self.most_tails(tokens, chunk_tokens)

    def most_held(self, cuts: Sequence[int]) -> int:
        """Blocks that a prompt holds at most which is computed from cut to cut."""
        return max(
            -(-end // self.size)
            + sum(
                -(-end // group.block_tokens) - max(0, begin // group.block_tokens - group.needed)
                for group in self._groups
            )
            for begin, end in pairwise(cuts)
        )

    def blocks_between(self, begin: int, end: int) -> int:
        """Blocks of all groups that tokens ``begin`` to ``end`` need."""
        sizes = [self.size, *(group.block_tokens for group in self._groups)]
        return sum(-(-end // size) - -(-begin // size) for size in sizes)

    def _release(self, running: Running, number: int, kept: int, end: int) -> None:
        """Give back a group's blocks up to ``end``: the first kept tails, and the uncached."""
        group = self._groups[number]
        self.queue.give_back(running.tails[number, :kept][::-1])
        blocks = (end - running.starts[number]) // group.block_tokens
        self.queue.uncached += blocks - group.needed * kept
        running.starts[number] = end
