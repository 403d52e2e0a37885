"""Drives a real cache as the scheduler decides: shares, resumes, computes, decodes, releases."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.checkpoints import CheckpointPool, resume_request, shared_table
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import CacheError
from dsv4kv.measure.recorder import Recorder
from dsv4kv.ops.contract import Backend
from dsv4kv.replay.clock import Span, Work
from dsv4kv.replay.data.check import ReuseCheck, Running
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.requests import Served
from dsv4kv.serve.executor import StepExecutor, StepTokens
from dsv4kv.serve.inputs import PromptContents
from dsv4kv.traces.request import Request

_NO_BLOCKS: Ids = np.empty(0, dtype=np.int64)


class SharedBlocks:
    """Blocks of every key that is cached; each counts as a holder of its own."""

    def __init__(self, manager: KVCacheManager, per_shared: int) -> None:
        """A key stands for ``per_shared`` blocks."""
        self._table, self._allocator = shared_table(manager)
        self._per_shared = per_shared
        self._blocks: dict[int, Ids] = {}
        self._ever_dropped: set[int] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._blocks

    @property
    def num_blocks(self) -> int:
        """Blocks of all keys."""
        return len(self._blocks) * self._per_shared

    def blocks(self, keys: Ids) -> Ids:
        """Blocks of keys int64[n] in order: int64[n × blocks of a key].

        Raises:
            CacheError: A key has none.
        """
        if unknown := [key for key in keys.tolist() if key not in self._blocks]:
            raise CacheError(f"the shared block {unknown[0]} has no blocks of the cache.")
        return np.concatenate([_NO_BLOCKS, *(self._blocks[key] for key in keys.tolist())])

    def keep(self, slot: int, keys: Ids, first: int) -> None:
        """Hold the blocks of a slot that keys stand for, from its shared block ``first`` on.

        Keys that have blocks already keep those.
        """
        for place, key in enumerate(keys.tolist(), start=first):
            if key not in self._blocks:
                columns = slice(place * self._per_shared, (place + 1) * self._per_shared)
                blocks = self._table.blocks[0, slot, columns].astype(np.int64)
                self._allocator.retain_memory_blocks(blocks)
                self._blocks[key] = blocks

    def drop(self, keys: Iterable[int]) -> None:
        """Give the blocks of evicted keys back."""
        for key in keys:
            self._allocator.release(self._blocks.pop(key))
            self._ever_dropped.add(key)

    def were_dropped(self, keys: Ids) -> NDArray[np.bool_]:
        """bool[n]: whether the blocks of keys int64[n] were ever evicted."""
        dropped = self._ever_dropped
        return np.fromiter((key in dropped for key in keys.tolist()), np.bool_, len(keys))

    def share(self, slot: int, keys: Ids, tokens: int) -> None:
        """Let a slot name the blocks of keys, as far as its first ``tokens`` tokens fill blocks.

        Its own blocks there, which say the same, go back.
        """
        blocks = self.blocks(keys)[: tokens // self._block_tokens]
        row = self._table.blocks[0, slot, : self._table.held[slot]].astype(np.int64)
        if np.array_equal(row[: len(blocks)], blocks):
            return
        row[: len(blocks)] = blocks
        self._allocator.retain_memory_blocks(row)
        self._table.clear(slot)
        self._table.adopt(slot, row)

    @property
    def _block_tokens(self) -> int:
        group = self._table.group
        return group.ratio * group.entries_per_block


class KeptWindows:
    """Checkpoints with data; which of them are kept is decided elsewhere.

    A checkpoint has to be copied while the chunk passes its place, before it is decided whether
    it is kept: until ``settle`` it is *staged*.
    """

    def __init__(self, pool: CheckpointPool, kept: Container[int]) -> None:
        """``kept`` has the keys whose checkpoints are to be kept, at any time."""
        self._pool, self._kept = pool, kept
        self._numbers: dict[int, int] = {}
        self._staged: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def stage(self, slot: int, key: int) -> None:
        """Copy what a slot needs to resume after a key; nothing if that is there."""
        if key not in self._numbers:
            self._staged.append((key, self._pool.save(slot)))

    def settle(self) -> None:
        """Keep the staged ones that are to be kept; give the room of all others back."""
        for key, number in self._staged:
            if key in self._kept and key not in self._numbers:
                self._numbers[key] = number
            else:
                self._pool.release(number)
        self._staged.clear()
        for key in [key for key in self._numbers if key not in self._kept]:
            self._pool.release(self._numbers.pop(key))

    def number(self, key: int) -> int:
        """Number of a key's checkpoint in the pool; raises ``CacheError`` without one."""
        if key not in self._numbers:
            raise CacheError(f"no checkpoint is kept after the shared block {key}.")
        return self._numbers[key]


@dataclass(frozen=True)
class Parts:
    """What a real cache consists of.

    Attributes:
        config: The cache as ``dsv4kv bench`` would be asked for it.
        manager: Slots, tables and pools.
        backend: Copies pages.
        recorder: Returns the time, without what is left out of it.
        executor: Runs the operations.
        contents: What prompts have in common.
        shared: Blocks of the prefix index.
        pool: Room for checkpoints.
        windows: Those that are kept.
        check: Compares what is gathered.
    """

    config: BenchConfig
    manager: KVCacheManager
    backend: Backend
    recorder: Recorder
    executor: StepExecutor
    contents: PromptContents
    shared: SharedBlocks
    pool: CheckpointPool
    windows: KeptWindows
    check: ReuseCheck

    def save_blank(self) -> int:
        """A checkpoint of nothing, for requests that bring nothing back."""
        slot = self.manager.admit_request()
        blank = self.pool.save(slot)
        self.manager.release_request(slot, self.manager.generation(slot))
        return blank


@dataclass(frozen=True)
class Rules:
    """How the data is driven.

    Attributes:
        shared_tokens: Tokens of a shared block.
        block_tokens: Tokens of a block.
        restores: Requests resume from checkpoints; else they compute a stretch again.
        every_block: A checkpoint is kept after every shared block.
        verify_every: Compare every so many steps; 0 never.
        spare_blocks: Blocks that the scheduler does not count.
    """

    shared_tokens: int
    block_tokens: int
    restores: bool
    every_block: bool
    verify_every: int
    spare_blocks: int


StepKind = Literal["decode", "mixed"]
_NS = 1e9


@dataclass
class KindTimes:
    """All steps of one kind, measured and modelled."""

    measured_ns: list[int] = field(default_factory=list)
    modelled_ns: list[int] = field(default_factory=list)


class StepClock:
    """Adds up what is timed until the scheduler counts the step it belonged to.

    Attributes:
        by_kind: Times of all steps so far.
        steps: Their number.
        kind: Of the step that is under way.
        total_ns: Everything timed so far.
    """

    def __init__(self, now_ns: Callable[[], int], bytes_per_s: float) -> None:
        """``bytes_per_s`` is the bandwidth that the model gives the cache."""
        self.by_kind: dict[StepKind, KindTimes] = {"decode": KindTimes(), "mixed": KindTimes()}
        self.kind: StepKind = "decode"
        self.steps = self.total_ns = 0
        self._now_ns, self._bytes_per_s = now_ns, bytes_per_s
        self._charged_ns = self._step_start_ns = self._step_bytes = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is inside as work of the cache."""
        start_ns = self._now_ns()
        try:
            yield
        finally:
            self.total_ns += self._now_ns() - start_ns

    def charge(self, work: Work) -> float:
        """Seconds that some work took, which is done: all since the last question."""
        seconds = (self.total_ns - self._charged_ns) / _NS
        self._charged_ns = self.total_ns
        self._step_bytes += work.cache_bytes
        if work.steps:
            times = self.by_kind[self.kind]
            times.measured_ns.append(self.total_ns - self._step_start_ns)
            times.modelled_ns.append(round(self._step_bytes / self._bytes_per_s * _NS))
            self.steps += 1
            self.kind, self._step_start_ns, self._step_bytes = "decode", self.total_ns, 0
        return seconds


class RealData:
    """A ``DataPath`` that does the work.

    What is found is never written again: where a request computes what it found, to have window
    and state, it does so in blocks of its own, which go as soon as they are whole.

    Attributes:
        parts: The cache.
        rules: How it is driven.
        times: Measured and modelled times of all steps.
    """

    def __init__(
        self, parts: Parts, rules: Rules, times: StepClock, requests: Sequence[Request]
    ) -> None:
        self.parts, self.rules, self.times = parts, rules, times
        self._requests = requests
        self._running: dict[int, Running] = {}
        self._blank = parts.save_blank()

    # ---- what the scheduler reports -------------------------------------------------------------

    def begin(self, served: Served) -> None:
        """Take a slot; share blocks and bring window and state back, if the request resumes."""
        parts, tokens = self.parts, served.position
        parts.contents.add(served.number, self._requests[served.number])
        with self.times.timed():
            slot = parts.manager.admit_request()
            if tokens:
                found = parts.shared.blocks(served.keys[: served.found])
                number = self._checkpoint(served) if self.rules.restores else self._blank
                place = (parts.manager, slot, tokens, found, parts.pool, number)
                resume_request(*place, parts.backend)
        self._running[served.number] = Running(
            slot=slot,
            generation=parts.manager.generation(slot),
            resumed_tokens=tokens,
            found_tokens=served.found * self.rules.shared_tokens,
            exact=self.rules.restores or not tokens,
            again=served.evictions > 0,
            lost=parts.shared.were_dropped(served.keys),
            shared_tokens=self.rules.shared_tokens,
            block_tokens=self.rules.block_tokens,
        )

    def compute(self, served: Served, chunk: Span) -> None:
        """Compute a chunk, in pieces that end where checkpoints are due."""
        running, (before, after) = self._running[served.number], chunk
        self.times.kind = "mixed"
        places = self._checkpoint_places(served, chunk)
        for end in [*places, *([after] if after not in places else [])]:
            with self.times.timed():
                step = self._prepare(np.array([served.number]), before, end)
            if end == after:
                step = self._announce(step, [running], [before])
            with self.times.timed():
                self.parts.executor.prefill(step)
                found = served.keys[: running.found_tokens // self.rules.shared_tokens]
                self.parts.shared.share(running.slot, found, end)
                if end in places:
                    key = served.keys[end // self.rules.shared_tokens - 1]
                    self.parts.windows.stage(running.slot, int(key))
            before = end

    def commit(self, served: Served) -> None:
        """Let the index hold what it took; share what it had from another request since."""
        running, shared = self._running[served.number], self.parts.shared
        with self.times.timed():
            committed = served.keys[: served.committed]
            first = running.found_tokens // self.rules.shared_tokens
            shared.keep(running.slot, committed[first:], first)
            shared.share(running.slot, committed, served.position)
            self.parts.windows.settle()

    def decode(self, decoders: Decoders) -> None:
        """Take every request one step further; give back what rejected drafts took."""
        members = decoders.members
        running = [self._running[served.number] for served in members]
        slots = np.array([each.slot for each in running])
        before = self.parts.manager.tokens[slots]
        kept = decoders.position - before
        after = before + np.minimum(decoders.left + kept, decoders.window)
        numbers = np.array([served.number for served in members])
        with self.times.timed():
            step = self._prepare(numbers, before, after, before + kept)
        step = self._announce(step, running, before.tolist())
        with self.times.timed():
            self.parts.executor.decode(step)
            rejected = step.kept < after
            if rejected.any():
                where = (slots[rejected], after[rejected], step.kept[rejected])
                prepare_forward(self.parts.manager, *where)

    def end(self, served: Served) -> None:
        """Give back the slot and its blocks."""
        self.parts.contents.remove(served.number)
        with self.times.timed():
            running = self._running.pop(served.number)
            self.parts.manager.release_request(running.slot, running.generation)

    def forget(self, keys: Sequence[int]) -> None:
        """Give back the blocks and the checkpoints of evicted keys."""
        with self.times.timed():
            self.parts.shared.drop(keys)
            self.parts.windows.settle()

    # ---- what others ask ------------------------------------------------------------------------

    def find_problem(self, cached_blocks: int) -> str | None:
        """What is wrong once everything has ended: outputs that differ, blocks nobody counts."""
        if failures := self.parts.check.failures:
            return f"{len(failures):,} gathers differ from a run without reuse: {failures[0]}"
        held = self.parts.manager.num_held_blocks
        if held == cached_blocks == self.parts.shared.num_blocks:
            return None
        return (
            f"{held} blocks are held, {self.parts.shared.num_blocks} of them cached, and the "
            f"scheduler counts {cached_blocks}."
        )

    # ---- steps ----------------------------------------------------------------------------------

    def _prepare(
        self, numbers: Ids, before: Ids | int, after: Ids | int, kept: Ids | None = None
    ) -> StepTokens:
        """A step of requests, with the blocks for it."""
        slots = np.array([self._running[number].slot for number in numbers.tolist()])
        first, end = (np.broadcast_to(each, slots.shape) for each in (before, after))
        prepare_forward(self.parts.manager, slots, first, end)
        batch = StepBatch(self.parts.manager, slots, first, end)
        stays = end if kept is None else kept
        return StepTokens(batch, numbers, stays, contents=self.parts.contents)

    def _announce(self, step: StepTokens, running: list[Running], before: list[int]) -> StepTokens:
        """The step, observed if it is its turn."""
        every = self.rules.verify_every
        if not every or self.times.steps % every:
            return step
        observed = self.parts.check.choose(step, running, before)
        return StepTokens(step.batch, step.requests, step.kept, observed, step.contents)

    def _checkpoint(self, served: Served) -> int:
        """Number of the checkpoint that a request resumes from."""
        key = served.keys[served.position // self.rules.shared_tokens - 1]
        return self.parts.windows.number(int(key))

    def _checkpoint_places(self, served: Served, chunk: Span) -> list[int]:
        """Positions within a chunk where window and state are to be kept."""
        size, (before, after) = self.rules.shared_tokens, chunk
        whole = min(after // size, len(served.keys))
        if self.rules.every_block:
            return [place * size for place in range(before // size + 1, whole + 1)]
        due = [place for place in reversed(served.marks) if place <= whole]
        return [place * size for place in due if place * size > before]
