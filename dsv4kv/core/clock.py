"""Virtual time, worked out from whole numbers of bytes, operations and steps.

Time is a function of the work done so far, never a sum of rounded times.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsv4kv.core.linear import NOTHING, Counts, LinearTimes, Stretch
from dsv4kv.core.served import Served

Ints: TypeAlias = NDArray[np.int64]


class Work(NamedTuple):
    """Work of steps, in whole numbers, as records have it (``runs.replay.ReplayWork``).

    ``counts`` is what takes time by a clock that does not add bytes and operations up.
    """

    steps: int = 0
    weight_bytes: int = 0
    update_bytes: int = 0
    score_bytes: int = 0
    select_bytes: int = 0
    attend_bytes: int = 0
    gather_bytes: int = 0
    copy_bytes: int = 0
    operations: int = 0
    counts: Counts = NOTHING

    @property
    def cache_bytes(self) -> int:
        reads = self.score_bytes + self.select_bytes + self.attend_bytes + self.gather_bytes
        return self.update_bytes + reads + self.copy_bytes

    @property
    def moved_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes


class Rates(NamedTuple):
    """Rates of all GPUs together: nothing overlaps, and every GPU bears an equal share."""

    bytes_per_s: float  # memory traffic
    operations_per_s: float  # arithmetic
    overhead_s: float
    source: str  # where the bandwidth comes from, in words

    def duration_s(self, work: Work) -> float:
        return (
            work.steps * self.overhead_s
            + work.moved_bytes / self.bytes_per_s
            + work.operations / self.operations_per_s
        )


class Tables(NamedTuple):
    """What steps move and compute, by tokens of a request."""

    # int64[n, 6]: of decoding every token up to there: updates, reads to score, select and attend,
    # operations, keys that a step reads once for all its tokens
    sums: Ints
    shared: Ints  # int64[n]: these keys of one step
    visible: Ints  # int64[n]: bytes that a prompt chunk reads that ends there
    grown: Ints  # int64[n]: bytes that prompt chunks write up to there
    kept: Ints  # int64[m]: bytes for the last tokens of a chunk, by its length
    weight_bytes: Callable[[int], int]  # weights that a step reads, by its tokens

    def chunk_bytes(self, before: int, after: int) -> int:
        """Bytes that a prompt chunk writes, and reads to write them."""
        kept = self.kept.item(min(after - before, len(self.kept) - 1))
        return int(self.grown.item(after) - self.grown.item(before) + kept)


Span = tuple[int, int]  # tokens of a request before and after a part of its prompt is computed


class VirtualClock:
    """Virtual time and the work done so far; time only ever goes forward."""

    def __init__(self, tables: Tables, rates: Rates | None, timer: LinearTimes | None) -> None:
        """``tables`` reach as far as the longest request; times are by rates or by a timer."""
        self.idle_s = 0.0  # time in which there was no work
        self._busy_s = 0.0
        self.steps = 0
        self._tables, self._rates, self._timer = tables, rates, timer
        self._sums = tables.sums
        self._weigh: dict[int, int] = {}
        self._counts = list(NOTHING)
        self._weight_bytes = self._gathers = self._copies = 0
        # updates, reads by kind, operations, keys that a step reads once for all tokens
        self._decoded = [0] * self._sums.shape[1]

    @property
    def now_s(self) -> float:
        return self.idle_s + self._busy_s

    @property
    def counts(self) -> Counts:
        return tuple(self._counts)

    @property
    def done(self) -> Work:
        """Work done so far; by a source of step times, of requests that decode when they leave."""
        updates, scores, choices, attention, operations, shared = self._decoded
        return Work(
            self.steps,
            self._weight_bytes,
            updates,
            scores + shared,
            choices,
            attention,
            self._gathers,
            self._copies,
            operations,
            self.counts,
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether every token has to be counted as it is decoded: its bytes take the time."""
        return self._timer is None

    def step(
        self, rows: int, tokens: int, contexts: int, chunks: Sequence[tuple[Served, Span]]
    ) -> None:
        """Take a step: ``rows`` requests decode ``tokens``, which see ``contexts`` together."""
        together, tables = tokens, self._tables
        for _, (before, after) in chunks:
            together += after - before
            self._decoded[0] += tables.chunk_bytes(before, after)
            self._gathers += tables.visible.item(after)
            self._decoded[4] += self._sums.item(after, 4) - self._sums.item(before, 4)
        self.steps += 1
        if together not in self._weigh:
            self._weigh[together] = self._tables.weight_bytes(together)
        self._weight_bytes += self._weigh[together]
        if self._timer is not None:
            prompt, fullest, prefix = _prompts(chunks)
            counts = self._timer.step(rows, tokens, contexts, prompt, fullest, prefix)
            for place, count in enumerate(counts):
                if count:  # most are 0 in a step that only decodes
                    self._counts[place] += count
        self._busy_s = self._duration()

    def decode(self, rows: int, contexts: int, steps: int, until_s: float) -> int:
        """Take up to ``steps`` steps of ``rows`` requests, none at ``until_s`` or later.

        ``contexts`` are the tokens that they see in the first one. Returns the steps taken.
        """
        timer = self._timer
        assert timer is not None
        copies_s = self._copies / timer.copy_bytes_per_s
        stretch = Stretch(rows, contexts, steps, copies_s, self.idle_s, until_s)
        taken, counts = timer.decode(self.counts, stretch)
        self._counts = list(counts)
        self.steps += taken
        if rows not in self._weigh:
            self._weigh[rows] = self._tables.weight_bytes(rows)
        self._weight_bytes += self._weigh[rows] * taken
        self._busy_s = self._duration()
        return taken

    def verify(self, befores: Sequence[int], taken: Sequence[int]) -> None:
        """Count what requests read and write that verify windows of tokens in the next step."""
        if not befores:
            return
        before = np.array(befores)
        after = before + np.array(taken)
        difference = np.add.reduce(self._sums.take(after, 0) - self._sums.take(before, 0))
        difference[-1] = self._tables.shared.take(after).sum()  # once, not for every token
        for place, count in enumerate(difference.tolist()):
            self._decoded[place] += count

    def leave(self, served: Served) -> None:
        if self._timer is not None and not served.drafts:
            difference = self._sums[served.position] - self._sums[served.begun]
            for place, count in enumerate(difference.tolist()):
                self._decoded[place] += count

    def copy(self, moved_bytes: int) -> None:
        self._copies += moved_bytes
        self._busy_s = self._duration()

    def prompt_s(self, before: int, after: int, chunk_tokens: int) -> float:
        """Seconds that the chunks of a prompt from one token to another would take, alone."""
        kept = (self.steps, self._weight_bytes, self._gathers, self._counts[:], self._decoded[:])
        busy_s, alone = self._busy_s, Served(0, 0.0, 0, 0, lambda _: [], (), 0)
        for begin in range(before, after, chunk_tokens):
            self.step(0, 0, 0, [(alone, (begin, min(begin + chunk_tokens, after)))])
        took_s = self._busy_s - busy_s
        self.steps, self._weight_bytes, self._gathers, self._counts, self._decoded = kept
        self._busy_s = busy_s
        return took_s

    def wait_until(self, time_s: float) -> None:
        """Do nothing until then; nothing happens where that is past."""
        self.idle_s = max(self.idle_s, time_s - self._busy_s)
        while self.now_s < time_s:  # the sum may fall short of it by a rounding
            self.idle_s = math.nextafter(self.idle_s, math.inf)

    def _duration(self) -> float:
        if self._rates is not None:
            return self._rates.duration_s(self.done)
        assert self._timer is not None
        copies_s = self._copies / self._timer.copy_bytes_per_s
        return self._timer.seconds(self.counts) + copies_s


def _prompts(chunks: Sequence[tuple[Served, Span]]) -> tuple[int, int, int]:
    """Prompt tokens of all ranks, of the rank with the most, and tokens before these, summed."""
    if not chunks:
        return 0, 0, 0
    if len(chunks) == 1:
        before, after = chunks[0][1]
        return after - before, after - before, (after - before) * before
    seen: dict[int, tuple[int, int]] = {}
    for served, (before, after) in chunks:
        tokens, prefix = seen.get(served.rank, (0, 0))
        size = after - before
        seen[served.rank] = tokens + size, prefix + size * before
    fullest, prefix = max(seen.values(), key=lambda each: each[0])
    return sum([tokens for tokens, _ in seen.values()]), fullest, prefix
