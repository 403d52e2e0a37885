"""Virtual time, worked out from whole numbers of bytes, operations and steps.

Time is a function of the work done so far, never a sum of rounded times: a stretch of steps ends
at the same instant whether it was taken at once or step by step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np

from dsv4kv.clock.sources import find_gpu
from dsv4kv.clock.steps import NOTHING, Counts, Steps, StepTimes
from dsv4kv.clock.weights import WeightModel
from dsv4kv.config.replay import CostSection
from dsv4kv.errors import ConfigError
from dsv4kv.record.store import load_record
from dsv4kv.record.yardstick import COPIES, yardsticks
from dsv4kv.replay.costs import Ints, StepTables


@dataclass(frozen=True)
class Rates:
    """Rates of all GPUs together.

    Attributes:
        bytes_per_s: Memory traffic.
        operations_per_s: Arithmetic.
        overhead_s: Of every step.
        source: Where the bandwidth comes from, in words.
    """

    bytes_per_s: float
    operations_per_s: float
    overhead_s: float
    source: str

    def seconds(self, work: "Work") -> float:
        """See ``Timing``: nothing overlaps, and every GPU bears an equal share."""
        return (
            work.steps * self.overhead_s
            + work.moved_bytes / self.bytes_per_s
            + work.operations / self.operations_per_s
        )


def find_rates(cost: CostSection) -> Rates:
    """Work out the rates.

    Raises:
        ConfigError: Two bandwidths or none, an unknown GPU, a record without peaks.
        RecordError: The record cannot be read.
    """
    gbps, source = _bandwidth(cost)
    return Rates(
        bytes_per_s=gbps * 1e9 * cost.gpus,
        operations_per_s=cost.tflops * 1e12 * cost.gpus,
        overhead_s=cost.overhead_us / 1e6,
        source=source,
    )


def _bandwidth(cost: CostSection) -> tuple[float, str]:
    """GB/s of one GPU, and how that is known."""
    if cost.bandwidth_gbps is not None and cost.peaks is not None:
        raise ConfigError("cost.bandwidth_gbps and cost.peaks both give a bandwidth: keep one.")
    if cost.bandwidth_gbps is not None:
        return cost.bandwidth_gbps, "as given"
    if cost.peaks is not None:
        return _measured(cost.peaks)
    gpu = find_gpu(cost)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue: give cost.bandwidth_gbps."
        )
    share = f"{cost.bandwidth_share:.0%} of {gpu.bandwidth_gbps:,} GB/s, {gpu.source}"
    return gpu.bandwidth_gbps * cost.bandwidth_share, share


def _measured(path: str) -> tuple[float, str]:
    """The median of the fastest plain copy, reads and writes both counted."""
    for case in load_record(Path(path)).cases:
        for copy in yardsticks(case)[:1]:
            if copy.name in ("memcpy", *COPIES) and copy.samples_ns:
                return copy.bytes / median(copy.samples_ns), f"copy measured in {path}"
    raise ConfigError(
        f"{path} has no measured copy: take the record of a run of dsv4kv bench with real data."
    )


class Work(NamedTuple):
    """Work of steps, in whole numbers.

    Attributes:
        steps: Steps.
        weight_bytes: Weights read.
        update_bytes: Moved to bring tokens into the cache.
        score_bytes: Moved to score keys.
        select_bytes: Moved to choose among the scores.
        attend_bytes: Moved to attend.
        gather_bytes: Moved by prompt chunks to read the cache.
        copy_bytes: Read and written by checkpoints.
        operations: Multiplications and additions.
        counts: What takes time by a clock that does not add bytes and operations up.
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
        """Bytes that the cache moves."""
        reads = self.score_bytes + self.select_bytes + self.attend_bytes + self.gather_bytes
        return self.update_bytes + reads + self.copy_bytes

    @property
    def moved_bytes(self) -> int:
        """All bytes."""
        return self.weight_bytes + self.cache_bytes

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        counts = tuple(map(add, self.counts, other.counts))
        return Work._make((*map(add, self[:-1], other[:-1]), counts))


class Timing(Protocol):
    """How long work takes."""

    def seconds(self, work: Work) -> float:
        """The same however the work was grouped."""


@dataclass(frozen=True)
class Counted:
    """Times of steps by what was counted, and of copies between them.

    Attributes:
        times: By which source.
    """

    times: StepTimes

    def seconds(self, work: Work) -> float:
        """See ``Timing``."""
        copies_s = work.copy_bytes / self.times.copy_bytes_per_s
        return self.times.seconds(work.counts) + copies_s


class VirtualClock:
    """Virtual time; it only ever goes forward.

    Attributes:
        done: Work done so far.
        idle_s: Time in which there was none.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.done = Work()
        self.idle_s = 0.0
        self._busy_s = 0.0
        self._ahead: tuple[Work, Work, float] | None = None  # work, all with it, and its end

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.idle_s + self._busy_s

    def after(self, work: Work) -> float:
        """The time at which work that begins now would end."""
        if self._ahead is None or self._ahead[0] is not work:
            done = self.done + work
            self._ahead = work, done, self._timing.seconds(done)
        return self.idle_s + self._ahead[2]

    def work(self, work: Work) -> None:
        """Do work."""
        if self._ahead is not None and self._ahead[0] is work:
            _, self.done, self._busy_s = self._ahead
        else:
            self.done = self.done + work
            self._busy_s = self._timing.seconds(self.done)
        self._ahead = None

    def wait_until(self, time_s: float) -> None:
        """Do nothing until then; nothing happens where that is past."""
        self.idle_s = max(self.idle_s, time_s - self._busy_s)
        while self.now_s < time_s:  # the sum may fall short of it by a rounding
            self.idle_s = math.nextafter(self.idle_s, math.inf)


Span = tuple[int, int]
"""Tokens of a request before and after a part of its prompt is computed."""


class CostModel:
    """Turns tokens into work."""

    def __init__(
        self, tables: StepTables, weights: WeightModel, times: StepTimes | None = None
    ) -> None:
        """``tables`` reach as far as the longest request; ``times`` count what they time."""
        self._tables = tables
        self._weights = weights
        self._times = times
        self._sums = tables.sums(weights.active_parameters)
        self._weight_bytes: dict[int, int] = {}

    def reached(self, lengths: Ints) -> Ints:
        """int64[6]: what decoding every token of requests of ``lengths`` int64[B] would have cost.

        Reads of keys that a step reads once are counted for each.
        """
        reached: Ints = np.add.reduce(self._sums.take(lengths, axis=0))
        return reached

    def reached_by(self, length: int) -> Ints:
        """int64[6]: the same of one request."""
        reached: Ints = self._sums[length]
        return reached

    def decode(
        self, before: Ints, after: Ints, rows: int, steps: int, decoded: Steps | None = None
    ) -> Work:
        """Steps in which requests decode one token each.

        Args:
            before: What they had ``reached`` before.
            after: What they have after that.
            rows: Requests.
            steps: Steps.
            decoded: The same, as the times of steps see it; None leaves out what takes time.
        """
        counts = NOTHING if decoded is None else self._count(decoded)
        weights = steps * self.weight_bytes(rows)
        return _decoding(steps, weights, *(after - before).tolist(), counts=counts)

    def speculate(self, before: Ints, taken: Ints) -> list[Work]:
        """Steps in which requests verify windows of tokens.

        Args:
            before: int64[steps, B]: tokens before each step.
            taken: int64[steps, B]: tokens each step takes.
        """
        after = before + taken
        difference = self._sums[after] - self._sums[before]
        difference[..., -1] = self._tables.shared[after]  # once, not for every token
        tokens, rows = taken.sum(axis=1).tolist(), difference.sum(axis=1).tolist()
        counts = [NOTHING] * len(tokens)
        if self._times:
            each = self._times.count(self.speculated(before, taken))
            counts = [tuple(row) for row in each.tolist()]
        return [
            _decoding(1, self.weight_bytes(count), *row, counts=counted)
            for count, row, counted in zip(tokens, rows, counts, strict=True)
        ]

    def speculated(self, before: Ints, taken: Ints) -> Steps:
        """The same, as the times of steps see it."""
        contexts = ((before + taken) * taken).sum(axis=1)
        return Steps(before.shape[1], taken.sum(axis=1), contexts)

    def mixed(
        self,
        done: Work,
        decoded: Steps,
        spans: Sequence[Span],
        steps: int = 1,
        ranks: Sequence[int] = (),
    ) -> Work:
        """Steps of decoding requests and prompt chunks; weights are read once a step.

        Args:
            done: Work of all decoding.
            decoded: What decodes in the steps.
            spans: What is computed of prompts: the same part of each in every step.
            steps: Steps.
            ranks: Which rank computes each span; all are one's where that is left out.
        """
        updates, gathers = done.update_bytes, done.gather_bytes
        operations, tokens = done.operations, decoded.tokens.item(0)
        for before, after in spans:
            size = (after - before) // steps
            updates += self._tables.chunks(before, after, steps)
            gathers += self._tables.seen(before, after, size)
            operations += self._sums.item(after, -2) - self._sums.item(before, -2)
            tokens += size
        counts = NOTHING
        if self._times:
            counts = self._count(_with_prompts(decoded, spans, steps, ranks))
        weights = steps * self.weight_bytes(tokens)
        reads = done.score_bytes, done.select_bytes, done.attend_bytes
        copied = done.copy_bytes
        return Work(steps, weights, updates, *reads, gathers, copied, operations, counts)

    def _count(self, steps: Steps) -> Counts:
        return NOTHING if self._times is None else self._times.total(steps)

    def weight_bytes(self, tokens: int) -> int:
        """Weights that a step of so many tokens reads."""
        if tokens not in self._weight_bytes:
            self._weight_bytes[tokens] = self._weights.step_bytes(tokens)
        return self._weight_bytes[tokens]


def _decoding(
    steps: int,
    weights: int,
    updates: int,
    scores: int,
    choices: int,
    attention: int,
    operations: int,
    shared: int,
    *,
    counts: Counts,
) -> Work:
    reads = scores + shared, choices, attention
    return Work(steps, weights, updates, *reads, operations=operations, counts=counts)


def decoding(rows: int, tokens: int, steps: int) -> Steps:
    """Steps in which requests that have so many tokens together decode one each."""
    if steps == 1:
        return Steps(rows, np.array([rows]), np.array([tokens + rows]))
    return Steps(rows, np.array([rows]), tokens + rows * np.arange(1, steps + 1, dtype=np.int64))


def _with_prompts(
    decoded: Steps, spans: Sequence[Span], steps: int, ranks: Sequence[int]
) -> Steps:
    """Decoding and chunks, the latter as the rank with the most tokens sees them."""
    seen: dict[int, tuple[int, int, int]] = {}  # by rank: tokens, before them, more every step
    for (before, after), rank in zip(spans, ranks or [0] * len(spans), strict=True):
        size = (after - before) // steps
        tokens, prefix, more = seen.get(rank, (0, 0, 0))
        seen[rank] = tokens + size, prefix + size * before, more + size * size
    prompt = sum(tokens for tokens, _, _ in seen.values())
    fullest, prefix, more = max(seen.values(), key=itemgetter(0))
    prefixes = np.array([prefix]) if steps == 1 else prefix + more * np.arange(steps)
    rows, tokens_each, contexts = decoded[:3]
    return Steps(rows, tokens_each, contexts, prompt, fullest, prefixes)
