"""Drives a real cache as the scheduler decides: shares, resumes, computes, decodes, releases."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.resume import resume_request
from dsv4kv.cache.step import StepBatch
from dsv4kv.replay.cost import Span
from dsv4kv.replay.data.parts import Parts, Rules
from dsv4kv.replay.data.places import Running
from dsv4kv.replay.data.times import StepClock
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.served import Served
from dsv4kv.workload.executor import StepTokens
from dsv4kv.workload.request import Request


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

    # ---- what the scheduler tells ---------------------------------------------------------------

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
        """Let the index hold what it took; share what it had from somebody else meanwhile."""
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
            self.parts.manager.release_request(self._running.pop(served.number).slot)

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
