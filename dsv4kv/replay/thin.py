"""The hit rate of a trace that does not fit into memory, from some of its blocks, with its error.

After Waldspurger et al., "Efficient MRC construction with SHARDS" (FAST 2015): blocks are kept
whose ids a hash chooses, and a cache is made smaller by the same share. Two things differ. Of two
neighbouring ids one is kept, time and again until the rest fits: long runs stay runs. And misses
are estimated: blocks that all prompts begin with are many references, and found in any case. What
is kept does not depend on the order of the trace, and is a trace itself: its reuse is as usual.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.replay.mrc import Answer, Point, Question, capacity_for, pick_capacities, prefix_costs
from dsv4kv.traces.paths import (
    NO_IDS,
    Batch,
    Ints,
    PathTable,
    Reuse,
    find_reuse,
    join_runs,
    table_of,
)

_SPLITS = 3
PARTS = 2**_SPLITS  # parts of what is kept, whose spread gives its error
_STUDENT_T = 2.365  # 97.5 %, PARTS - 1 degrees of freedom
RUN_BYTES = 512
"""Memory that a kept run of ids takes, with what is found out about it: measured, rounded up."""


@dataclass(frozen=True)
class Kept:
    """Blocks of some requests, in runs: whose, from 0 without gaps, rising; first number; length.

    ``lack``, int64[requests], is what the request's last block is short of, where it is kept.
    """

    request: Ints
    start: Ints
    count: Ints
    lack: Ints

    @classmethod
    def all_of(cls, batch: Batch) -> "Kept":
        """Every block of some requests, without requests that have none."""
        lack = np.maximum(0, batch.ids_of_each() * batch.hash_block_tokens - batch.input_tokens)
        return cls(batch.request, batch.start, batch.count, lack)._without_empty()

    def halved(self, level: int, side: int = 0) -> "Kept":
        """One of two neighbouring ids, numbered anew, or the other; ``level`` never twice."""
        last = self.start + self.count - 1
        low, high = self.start >> 1, last >> 1
        # a run's ends may be one half of a pair: its only one here
        low_kept = (self.start & 1 == 0) | (_choice(low, level, side) == 1)
        high_kept = (last & 1 == 1) | (_choice(high, level, side) == 0)
        begin, end = low + ~low_kept, high - ~high_kept
        ends = _choice(high, level, side) == last & 1
        kept_last = np.zeros(len(self.lack), bool)
        kept_last[self.request] = ends  # of several runs the last one's is written last
        some = end >= begin
        runs = join_runs(self.request[some], begin[some], (end - begin + 1)[some])
        return Kept(*runs, self.lack * kept_last)._without_empty()

    def _without_empty(self) -> "Kept":
        some = np.zeros(len(self.lack), bool)
        some[self.request] = True
        return Kept((some.cumsum() - 1)[self.request], self.start, self.count, self.lack[some])

    @classmethod
    def together(cls, parts: Sequence["Kept"]) -> "Kept":
        before = np.cumsum([0, *(len(part.lack) for part in parts)])
        request = [part.request + first for part, first in zip(parts, before, strict=False)]
        rest = zip(*((part.start, part.count, part.lack) for part in parts), strict=True)
        return cls(np.concatenate(request), *map(np.concatenate, rest))

    def table(self, block_tokens: int) -> PathTable:
        nothing = np.zeros(len(self.lack), np.int64)
        ids = self.request, self.start, self.count
        batch = Batch(np.zeros(len(nothing)), nothing, nothing, block_tokens, *ids)
        tokens = batch.ids_of_each() * block_tokens - self.lack
        return table_of(replace(batch, input_tokens=tokens))


def _choice(pairs: Ints, level: int, side: int) -> Ints:
    """0 or 1 for every pair of ids: which of both is kept.

    By splitmix64 (Steele et al., OOPSLA 2014), the same on every machine.
    """
    numbers = pairs + level * 0x5851F42D4C957F2D % 2**62
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(63)).astype(np.int64) ^ side


@dataclass
class Totals:
    """Numbers of the whole trace: requests, tokens of prompts, ids, and tokens they stand for.

    ``longest`` is the number of ids of the longest prompt, ``block_tokens`` the tokens of an id.
    """

    requests: int = 0
    input_tokens: int = 0
    references: int = 0
    path_tokens: int = 0
    longest: int = 0
    block_tokens: int = 0

    def add(self, batch: Batch) -> None:
        counts = batch.ids_of_each()
        self.requests += len(counts)
        self.input_tokens += int(batch.input_tokens.sum())
        self.references += int(counts.sum())
        covered = np.minimum(batch.input_tokens, counts * batch.hash_block_tokens)
        self.path_tokens += int(covered.sum())
        self.longest = max(self.longest, int(counts.max()))
        self.block_tokens = self.block_tokens or batch.hash_block_tokens


def thin(batches: Iterable[Batch], most_runs: int) -> tuple[Totals, Kept, int]:
    """Keep blocks in as many runs as fit; returns all numbers, what is kept, and halvings."""
    parts, held, level, totals = list[Kept](), 0, 0, Totals()
    for batch in batches:
        totals.add(batch)
        part = Kept.all_of(batch)
        for done in range(level):
            part = part.halved(done)
        parts.append(part)
        held += len(part.start)
        while held > most_runs:
            parts = [Kept.together(parts).halved(level)]
            held, level = len(parts[0].start), level + 1
    if not totals.references:
        raise TraceError(NO_IDS)
    return totals, Kept.together(parts), level


@dataclass(frozen=True)
class _Part:
    """The reuse of some blocks, each representing ``every`` blocks."""

    reuse: Reuse
    every: int

    def misses(self, capacity_blocks: int | None) -> NDArray[np.float64]:
        """float64[2]: blocks and tokens of all prompts that a cache does not find."""
        all_of_it = np.array([self.reuse.blocks.sum(), self.reuse.tokens.sum()], np.float64)
        if capacity_blocks is None:
            return self.every * (all_of_it - self._found(None))
        # a cache finds what has fewer blocks above it: n of them show as n / every, rounded at
        # random up or down
        place = (capacity_blocks - 1) / self.every + (1 + 1 / self.every) / 2
        low = int(place)
        found = self._found(low) + (place - low) * (self._found(low + 1) - self._found(low))
        return self.every * (all_of_it - found)

    def _found(self, blocks: int | None) -> NDArray[np.float64]:
        found = self.reuse.found_blocks(blocks).sum(), self.reuse.found_tokens(blocks).sum()
        return np.array(found, np.float64)


def measure_stream(batches: Iterable[Batch], question: Question, memory_bytes: int) -> Answer:
    """Hits by capacity of a trace read once; ``memory_bytes`` are for what is kept of it."""
    if memory_bytes < PARTS * RUN_BYTES:
        raise ConfigError(f"--memory {memory_bytes:,} B holds nothing of a trace: give 64MiB.")
    totals, kept, level = thin(batches, memory_bytes // RUN_BYTES)
    grain = totals.block_tokens
    whole = _Part(find_reuse(kept.table(grain), grain), 2**level)
    splits = [kept] if level else []
    for more in range(_SPLITS):  # in the end parts that have no block in common
        splits = [part.halved(level + more, side) for part in splits for side in (0, 1)]
    split = [_Part(find_reuse(k.table(grain), grain), PARTS * 2**level) for k in splits]
    sizes: list[int | None] = [*question.capacities_tokens] or [
        max(blocks * whole.every, totals.longest) * grain
        for blocks in pick_capacities(whole.reuse, question.points)
    ]
    longest_tokens = totals.longest * grain
    if (least := min(question.capacities_tokens, default=longest_tokens)) < longest_tokens:
        raise ConfigError(
            f"a capacity of {least:,} tokens is smaller than the longest prompt, "
            f"{longest_tokens:,} tokens: take a larger one, or leave --memory out."
        )
    costs, found = prefix_costs(question.model), list[Point]()
    sizes = [*dict.fromkeys(sizes), None]
    for size in sizes:
        blocks = None if size is None else size // grain
        hits, error = _estimate(whole, split, totals, blocks)
        found.append(
            Point(
                capacity_tokens=size,
                capacity_blocks=blocks,
                capacity_bytes=None if size is None else int(size * costs.token_bytes),
                rejected=0,
                block_hits=float(hits[0]),
                token_hits=float(hits[1]),
                token_error=error,
            )
        )
    enough = capacity_for(whole.reuse, 0.9)
    return Answer(
        requests=totals.requests,
        input_tokens=totals.input_tokens,
        references=totals.references,
        block_tokens=grain,
        trace_block_tokens=grain,
        costs=costs,
        points=tuple(found),
        enough_tokens=None if enough is None else enough * whole.every * grain,
        kept_share=1 / whole.every,
        kept_references=int(kept.count.sum()),
    )


def _estimate(
    whole: _Part, split: Sequence[_Part], totals: Totals, blocks: int | None
) -> tuple[NDArray[np.float64], float]:
    """Shares of blocks and of prompt tokens found, and half of the latter's 95 % interval.

    The parts' spread shows how much chance there is; how far their mean is from the whole, what
    keeping fewer blocks does apart from chance. Less than one kept block cannot be resolved.
    """
    known = np.array([totals.references, totals.path_tokens], np.float64)
    asked = np.array([totals.references, totals.input_tokens], np.float64)
    hits = (known - whole.misses(blocks)) / asked
    if not split:
        return hits, 0.0
    each = np.array([(known - part.misses(blocks)) / asked for part in split])
    chance = _STUDENT_T * each.std(axis=0, ddof=1)[1] / sqrt(len(split))
    one_kept = whole.every * totals.block_tokens / totals.input_tokens
    error = max(one_kept, chance + abs(hits[1] - each.mean(axis=0)[1]))
    return hits.clip(0, 1), float(error)
