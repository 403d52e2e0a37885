"""The serving loop: admit, prefill in chunks, decode to the end, release.

Closed loop: as many requests run as ``concurrency`` allows, in trace order, whatever their
arrival times. Every state is an array over slots; a step has no Python loop over requests.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsv4kv.bench.launches import Turns
from dsv4kv.bench.serve.executor import Recorder, StepExecutor, StepTokens
from dsv4kv.bench.serve.inputs import PromptContents
from dsv4kv.bench.serve.reuse import NEVER, PrefixReuse
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.config.bench import PLACED_OUTPUT_TOKENS, BenchConfig, WorkloadSection
from dsv4kv.errors import TraceError
from dsv4kv.runs.schema import Totals
from dsv4kv.traces import ReadOptions, read_trace
from dsv4kv.traces.request import Request
from dsv4kv.traces.synth import synthesize


def unused_bytes(manager: KVCacheManager, slots: Ids) -> int:
    """Bytes of the held pages beyond the entries of the requests in ``slots``."""
    tokens, unused = manager.tokens[slots], 0
    for table in manager.tables:
        for schema in manager.plan.schemas:
            if schema.layer.layer_idx in table.group.layers:
                ratio = schema.layer.ratio
                used = int((tokens // ratio).sum()) * int(schema.bytes_per_token * ratio)
                unused += table.allocator.num_held * schema.block_bytes - used
    return unused


class ServingLoop:
    """Serves a stream of requests over a cache, with or without moving data."""

    def __init__(
        self,
        manager: KVCacheManager,
        requests: Iterable[Request],
        config: BenchConfig,
        recorder: Recorder,
        executor: StepExecutor | None = None,
        reuse: PrefixReuse | None = None,
        contents: PromptContents | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Prepare to serve requests in order, as a configuration says.

        ``executor`` moves the data; None runs the bookkeeping alone. ``reuse`` resumes prompts
        after what earlier ones have in common with them, which ``contents`` knows. With ``turns``
        steps alternate with another process.
        """
        nothing: dict[str, Any] = dict.fromkeys(Totals.model_fields, 0)
        self.totals = Totals.model_construct(**nothing)
        self._manager, self._recorder, self._executor = manager, recorder, executor
        self.reuse, self._contents, self._turns = reuse, contents, turns or Turns()
        self._workload, self._measure = config.workload, config.measure
        self._drafts = config.workload.speculative
        self._waiting: Iterator[Request] = iter(requests)
        self._next: Request | None = next(self._waiting, None)
        self._random = np.random.default_rng(config.measure.seed)
        self._admitted = self._progress = 0  # requests; tokens done since the last yield
        self._active: Ids = np.empty(0, dtype=np.int64)  # in order of admission
        slots = manager.plan.num_slots
        self._position, self._prompt_left, self._output_left = np.zeros((3, slots), np.int64)
        self._first_output, self._serial, self._generation = np.zeros((3, slots), np.int64)
        # blocks at full length
        self._reserved = np.zeros((len(manager.tables), slots), dtype=np.int64)
        self._stop = np.full(slots, NEVER)  # where the next prompt chunk ends at the latest

    def run(self) -> Totals:
        """Serve every request to its end; ``totals`` is right at any moment."""
        for _ in self.steps():
            pass
        return self.totals

    def steps(self) -> Iterator[int]:
        """Serve every request to its end, step by step.

        Yields the tokens done, as ``count_tokens`` counts them, while those that ended still hold
        their blocks. The time until the next one is asked for is no part of the run.
        """
        self._turns.meet()
        start_ns = self._recorder.now_ns()
        while True:
            with self._recorder.excluded():
                in_turn = self._turns.wait()
            try:
                taken = self._step()
                if taken is None:
                    return
                shown_ns = perf_counter_ns()
                yield self._progress
                self._recorder.excluded_ns += perf_counter_ns() - shown_ns
                self._progress = 0
                self._advance(*taken)
                self.totals.steps += 1
                self.totals.steps_in_turns += in_turn
            finally:
                with self._recorder.excluded():
                    self._turns.hand_on()
            self.totals.wall_ns = self._recorder.now_ns() - start_ns

    def _step(self) -> tuple[Ids, Ids, int] | None:
        """A step: its slots, the tokens each keeps and how many decode; None after the last."""
        self._recorder.enabled = self.totals.steps >= self._measure.warmup_steps
        self._admit()
        if not self._active.size:
            return None
        start_ns = self._recorder.now_ns()
        slots, take, decoding = self._choose_tokens()
        kept = self._draw_kept(take, decoding)
        before = self._position[slots]
        after = before + take
        self._prepare("prepare", slots, before, after)
        held = self._manager.num_held_blocks
        if held > self.totals.peak_blocks:
            with self._recorder.excluded():
                self.totals.peak_blocks = held
                self.totals.peak_rounding_bytes = unused_bytes(self._manager, self._active)
        if self._executor is not None:
            every, done = self._measure.verify_every, self.totals.steps
            observed = every > 0 and done % every == 0

            def tokens(some: slice) -> StepTokens:
                batch = Step.of(self._manager, slots[some], before[some], after[some])
                known = self._serial[slots[some]], (before + kept)[some]
                return StepTokens(batch, *known, observed, self._contents)

            if decoding:
                self._executor.decode(tokens(slice(decoding)))
            for i in range(decoding, len(slots)):  # chunks differ in length: each is a call
                self._executor.prefill(tokens(slice(i, i + 1)))
        rejected = kept < take
        if np.count_nonzero(rejected):
            back = (before + kept)[rejected]
            self._prepare("rollback", slots[rejected], after[rejected], back)
            self.totals.rolled_back_tokens += int((take - kept).sum())
        self._recorder.keep("step", start_ns)
        if decoding == len(slots):
            self._recorder.keep("decode_step", start_ns)
        self._progress += int(kept.sum()) * (self._workload.context or 1)
        return slots, kept, decoding

    def _admit(self) -> None:
        while self._next is not None and len(self._active) < self._workload.concurrency:
            request = self._next
            fed = request.input_tokens + self._fed_outputs(request)
            need = np.array([table.group.blocks_for(fed) for table in self._manager.tables])
            limits = np.array([table.allocator.num_blocks for table in self._manager.tables])
            if fed > self._manager.plan.max_context_tokens or np.any(need > limits):
                self.totals.rejected += 1
            elif np.any(self._reserved.sum(axis=1) + need > limits):
                return  # waits until a running request gives its blocks back
            else:
                self._start(request, need)
            self._next = next(self._waiting, None)

    def _fed_outputs(self, request: Request) -> int:
        """Output tokens that enter the cache: the last one is only returned."""
        limit = self._workload.max_output_tokens or request.output_tokens
        return max(0, min(request.output_tokens, limit) - 1)

    def _start(self, request: Request, blocks: Ids) -> None:
        start_ns = self._recorder.now_ns()
        slot = self._manager.admit_request()
        self._recorder.keep("admit", start_ns)
        self._active = np.append(self._active, slot)
        self._generation[slot] = self._manager.generation(slot)
        self._serial[slot] = self._admitted
        resumed = 0
        if self._contents is not None:
            self._contents.add(self._admitted, request)
        if self.reuse is not None:
            start_ns = self._recorder.now_ns()
            resumed, self._stop[slot] = self.reuse.begin(slot, request)
            self._recorder.keep("resume", start_ns)
            self.totals.resumed_tokens += resumed
        if self._workload.context:
            resumed = request.input_tokens
            with self._recorder.excluded():
                prepare_forward(self._manager, [slot], [0], [resumed])
                if self._executor is not None:
                    self._executor.place(self._manager, slot, self._admitted, resumed)
            self.totals.placed_tokens += resumed
            self._progress += resumed
        self._position[slot] = resumed
        self._prompt_left[slot] = request.input_tokens - resumed
        self._output_left[slot] = self._fed_outputs(request)
        self._first_output[slot] = min(request.output_tokens, 1)
        self._reserved[:, slot] = blocks
        self._admitted += 1
        self.totals.peak_requests = max(self.totals.peak_requests, len(self._active))

    def _choose_tokens(self) -> tuple[Ids, Ids, int]:
        """Ids of the step and the tokens each takes: first those that decode, then chunks."""
        prompt_left = self._prompt_left[self._active]
        decoding = self._active[prompt_left == 0]
        window = 1 + self._drafts.draft_tokens
        take = np.minimum(self._output_left[decoding], window)
        waiting = self._active[prompt_left > 0]
        if not waiting.size:
            return decoding, take, len(decoding)
        left = np.minimum(
            self._prompt_left[waiting], self._stop[waiting] - self._position[waiting]
        )
        budget = self._workload.step_tokens - int(take.sum())
        chunk = np.clip(budget - (np.cumsum(left) - left), 0, left)
        some = chunk > 0
        slots = np.concatenate([decoding, waiting[some]])
        return slots, np.concatenate([take, chunk[some]]), len(decoding)

    def _prepare(self, name: str, slots: Ids, before: Ids, after: Ids) -> None:
        start_ns = self._recorder.now_ns()
        if self.reuse is not None:
            self.reuse.make_room(slots, after)
        prepare_forward(self._manager, slots, before, after)
        self._recorder.keep(name, start_ns)

    def _draw_kept(self, take: Ids, decoding: int) -> Ids:
        """Tokens that will stay of those taken: the others are drafts to be rejected."""
        drafted = take[:decoding] - 1
        if not np.count_nonzero(drafted):
            return take
        draws = self._random.random((decoding, self._drafts.draft_tokens))
        accepted = np.logical_and.accumulate(draws < self._drafts.acceptance, axis=1).sum(axis=1)
        kept = take.copy()
        kept[:decoding] = 1 + np.minimum(accepted, drafted)
        self.totals.drafted_tokens += int(drafted.sum())
        return kept

    def _advance(self, slots: Ids, kept: Ids, decoding: int) -> None:
        decoders, chunks = slots[:decoding], slots[decoding:]
        self._position[slots] += kept
        self._output_left[decoders] -= kept[:decoding]
        self._prompt_left[chunks] -= kept[decoding:]
        if self.reuse is not None:
            for slot in chunks.tolist():
                self._stop[slot] = self.reuse.reach(slot, int(self._position[slot]))
                if not self._prompt_left[slot]:
                    self.reuse.finish_prompt(slot)
        answered = chunks[self._prompt_left[chunks] == 0]  # a prompt's end gives one token
        self.totals.input_tokens += int(kept[decoding:].sum())
        self.totals.output_tokens += int(
            kept[:decoding].sum() + self._first_output[answered].sum()
        )
        done = slots[(self._prompt_left[slots] == 0) & (self._output_left[slots] == 0)]
        for slot in done.tolist():
            if self._contents is not None:
                self._contents.remove(int(self._serial[slot]))
            if self.reuse is not None:
                self.reuse.end(slot)
            start_ns = self._recorder.now_ns()
            self._manager.release_request(slot, int(self._generation[slot]))
            self._recorder.keep("release", start_ns)
            self._active = self._active[self._active != slot]
            self._reserved[:, slot] = 0
            self.totals.requests += 1


def open_requests(workload: WorkloadSection, seed: int) -> Iterator[Request]:
    """The requests in order; every call starts anew. Raises ``TraceError``."""
    if workload.context:
        placed = Request(0.0, workload.context, PLACED_OUTPUT_TOKENS)
        return iter([placed] * workload.concurrency)
    if workload.trace is None:
        requests = synthesize(workload.synthetic, seed)
    else:
        # they come as fast as they are served: their times do not count
        requests = read_trace(workload.trace, workload.trace_format, ReadOptions(any_order=True))
    stop = None if workload.limit is None else workload.skip + workload.limit
    return islice(requests, workload.skip, stop)


def count_tokens(workload: WorkloadSection, seed: int) -> int:
    """Tokens of all requests, as progress counts them; reads the workload to its end.

    Raises:
        TraceError: The trace has a defect, or fewer requests than are skipped.
    """
    if workload.context:
        decoded = workload.placed_tokens - workload.context
        return workload.concurrency * workload.context * (1 + decoded)
    tokens = requests = 0
    for request in open_requests(workload, seed):
        requests += 1
        tokens += request.total_tokens
    if not requests:
        source = workload.trace or "the synthetic workload"
        raise TraceError(
            f"{source}: no request is left after skipping {workload.skip}: lower workload.skip."
        )
    return tokens


class Requests:
    """Requests driven one by one, where no loop schedules them; one serial has the same tokens."""

    def __init__(self, manager: KVCacheManager, executor: StepExecutor) -> None:
        self.manager, self.executor = manager, executor

    def admit(self) -> int:
        return self.manager.admit_request()

    def release(self, slot: int) -> None:
        self.manager.release_request(slot, self.manager.generation(slot))

    def place(self, slot: int, serial: int, tokens: int) -> None:
        """Let a request that was just admitted hold a prompt, its end written as served."""
        prepare_forward(self.manager, [slot], [0], [tokens])
        self.executor.place(self.manager, slot, serial, tokens)

    def compute(self, slot: int, serial: int, *ends: int) -> None:
        """Compute a prompt in chunks up to each of these tokens, as far as they are ahead."""
        for end in ends:
            if end > self.manager.tokens[slot]:
                self.executor.prefill(self._step(slot, serial, end))

    def decode(self, slot: int, serial: int, steps: int, *, observed: bool = False) -> None:
        """Decode a token in each step."""
        for _ in range(steps):
            after = int(self.manager.tokens[slot]) + 1
            self.executor.decode(self._step(slot, serial, after, observed=observed))

    def _step(self, slot: int, serial: int, after: int, *, observed: bool = False) -> StepTokens:
        before = int(self.manager.tokens[slot])
        prepare_forward(self.manager, [slot], [before], [after])
        batch = Step.of(self.manager, [slot], [before], [after])
        return StepTokens(batch, np.array([serial]), np.array([after]), observed=observed)
