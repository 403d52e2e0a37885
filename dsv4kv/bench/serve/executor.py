"""Runs a step's operations on real bytes, layer by layer, as a decoder would, and takes samples.

Sampling is cheap to call; nothing is aggregated.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter_ns
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.protocol import DeviceClock
from dsv4kv.bench.serve import inputs as inp
from dsv4kv.bench.serve import operations as op
from dsv4kv.bench.serve.graphs import DecodeGraphs
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.cache.tables import DeviceTables, stage
from dsv4kv.ops.cuda.launch import dependent_launches
from dsv4kv.ops.work import CountedLayers, StepWork

_samples = partial(array, "q")


Latency = tuple[str, int]  # name and nanoseconds

Timed = tuple[str, str, int, int, int, int]
"""Operation, layer type, nanoseconds, entries, useful bytes, floating-point operations."""


class Recorder:
    """Durations by name; of operations (name, layer type) ns, entries, bytes, flops of each call.

    While ``enabled`` is false (warm-up) actions run and nothing is kept. Time spent on inputs and
    checks is added to ``excluded_ns``, and is not part of what surrounds it.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.excluded_ns = 0
        self.latencies: dict[str, array[int]] = defaultdict(_samples)
        self.operations: dict[tuple[str, str], array[int]] = defaultdict(_samples)

    def now_ns(self) -> int:
        """A clock that stands still while time is excluded."""
        return perf_counter_ns() - self.excluded_ns

    def keep(self, name: str, start_ns: int) -> None:
        """Keep the time since ``start_ns`` (of ``now_ns``) as a latency."""
        self.keep_all([(name, self.now_ns() - start_ns)])

    def keep_all(self, latencies: Iterable[Latency]) -> None:
        """Keep latencies of a step."""
        if self.enabled:
            for name, ns in latencies:
                self.latencies[name].append(ns)

    def keep_calls(self, calls: Iterable[Timed]) -> None:
        """Keep what operations took; one without entries is no sample."""
        if self.enabled:
            for name, layer_type, *sample in calls:
                if sample[1]:
                    self.operations[name, layer_type].extend(sample)  # whole, though Ctrl-C comes

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Stop the clock of everything that surrounds this."""
        start_ns = perf_counter_ns()
        try:
            yield
        finally:
            self.excluded_ns += perf_counter_ns() - start_ns


@dataclass(frozen=True)
class StepTokens:
    """Tokens of a step."""

    batch: Step  # the tokens as the cache sees them, on the host
    requests: Ids  # running number of every request of the batch, int64[B]
    kept: Ids  # tokens of every request once rejected drafts are rolled back, int64[B]
    observed: bool = False  # show what is read to the observer
    # what prompts have in common; None where every token is its request's own
    contents: inp.PromptContents | None = None

    def rows(self, members: Ids | int, positions: Ids) -> Ids:
        """Input rows of tokens, by request (0 … B − 1) and position, as this step sees them."""
        serials, rejected = self.requests[members], positions >= self.kept[members]
        if self.contents is None:
            return inp.InputBank.rows(serials, positions, rejected)
        return self.contents.rows(np.broadcast_to(serials, positions.shape), positions, rejected)


class StepObserver(Protocol):
    """Looks at what a layer's reads returned, wherever that is."""

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """``out`` bf16[B, W, D] holds the windows of the batch."""

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """``out`` bf16[B, K, ·] holds the entries ``indices`` int[B, K]; −1 was not asked for."""

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: inp.Queries, found: op.Reads
    ) -> None:
        """``found`` holds what a layer scored, selected and attended to."""


@dataclass(frozen=True)
class Gpu:
    """What only a run on a GPU has."""

    tables: DeviceTables  # block tables on the device
    clock: DeviceClock  # times steps there; a host's clock would time their launches
    graphs: DecodeGraphs | None = None  # captured decode steps; None launches every operation
    # every other decode step is launched operation by operation, to be compared
    in_turns: bool = False
    fused: bool = True  # a step writes a layer with one kernel, not with one for each operation
    dependent: bool = False  # a kernel is set up while the one before it still runs


@dataclass
class StepExecutor:
    """Drives every layer's cache through a step; on the CPU every operation is timed."""

    layers: Sequence[LayerCache]  # the cache
    inputs: inp.InputBank  # data, on the device of the cache
    recorder: Recorder  # takes the samples
    observer: StepObserver  # is shown the reads of observed steps
    chooser: inp.EntryChooser  # chooses what CSA layers gather
    outputs: op.Outputs  # where reads write
    device: torch.device  # where the cache is
    gpu: Gpu | None = None  # none on the CPU
    contexts: inp.PlacedContexts | None = None  # places prompts; None where they are served
    # makes a range of a profiler; None where none looks
    mark: Callable[[str], AbstractContextManager[object]] | None = None
    _turns: Counter[bool] = field(default_factory=Counter, init=False)

    @cached_property
    def _decoding(self) -> op.Work:
        fused, engine = self.gpu is not None, self.in_place  # each is timed by itself on the CPU
        return [(e, op.decode_operations(e, fused=fused, engine=engine)) for e in self.layers]

    @cached_property
    def _prefilling(self) -> op.Work:
        return [(layer, op.prefill_operations(layer)) for layer in self.layers]

    @cached_property
    def _ratios(self) -> list[int]:
        return [] if self.in_place else op.selecting_ratios(self.layers)

    @cached_property
    def counted(self) -> CountedLayers:
        """The layers as their work is counted."""
        return CountedLayers.of(self.layers[0].model, [layer.schema for layer in self.layers])

    @property
    def in_place(self) -> bool:
        """Whether decode steps read in place, as engines do."""
        return self.inputs.asks is not None

    def decode(self, step: StepTokens) -> None:
        """One token of every request, or one and its drafts: insert, flush, read."""
        graphs = self._take_graphs(step)
        with self._making_inputs(step):
            inputs, chosen = self._decode_inputs(step)
        show = partial(self._show, step, inputs.queries, chosen) if step.observed else None
        if self.gpu is None:
            self._run_on_host(self._decoding, step, inputs, show)
        elif graphs is not None:
            self._replay(graphs, step, inputs, show)
        else:
            with self.recorder.excluded():
                view, run = step.batch.to(self.device), self._run(step, show)
                calls = op.fill_calls(self._decoding, view, inputs, run)
            with (
                self._range("launch"),
                self._span("decode_eager", step),
                dependent_launches(self.gpu.dependent),
            ):
                self.gpu.tables.publish()
                op.run_calls(calls, run)

    def prefill(self, step: StepTokens) -> None:
        """One prompt chunk of one request: insert and compress, then read what is visible."""
        with self._making_inputs(step):
            inputs = self.inputs.take(self._chunk_rows(step), {})
        show = partial(self._show, step, None, {}) if step.observed else None
        if self.gpu is None:
            self._run_on_host(self._prefilling, step, inputs, show)
            return
        with self.recorder.excluded():
            run = self._run(step, show)
            calls = op.fill_calls(self._prefilling, step.batch.to(self.device), inputs, run)
        with self._range("launch"):
            self.gpu.tables.publish()
            op.run_calls(calls, run)

    def place(self, manager: KVCacheManager, slot: int, serial: int, tokens: int) -> None:
        """Place the entries of a prompt of ``tokens`` tokens; its end is written as served."""
        assert self.contexts is not None
        after, plan = np.array([tokens]), manager.plan
        written = inp.first_written(tokens, plan.config.window_tokens + plan.draft_tokens)
        batch = Step.of(manager, [slot], [written], after)
        step = StepTokens(batch, np.array([serial]), after)
        if self.gpu is not None:
            self.gpu.tables.publish()
        inputs = self.inputs.take(self._chunk_rows(step), {})
        writes = [(layer, op.chunk_writes(layer)) for layer in self.layers]
        op.run_layers(writes, step.batch.to(self.device), inputs, self._run(step, None))
        self.contexts.place(slot, serial, tokens)

    def step_operations(self, layer: LayerCache) -> list[op.LayerOperation]:
        """Operations of a decode step on a layer."""
        fused = self.gpu is not None and self.gpu.fused
        return op.decode_operations(layer, fused=fused, engine=self.in_place)

    def work_of(self, step: StepTokens) -> StepWork:
        """Counts entries and bytes of a step's operations."""
        after, positions = step.batch.tokens_after.numpy(), step.batch.positions.numpy()
        return StepWork(self.counted, after, positions)

    def _run(self, step: StepTokens, show: Callable[[op.Call], None] | None) -> op.Run:
        def look(call: op.Call) -> None:
            assert show is not None
            with self.recorder.excluded():
                show(call)

        return op.Run(
            self.outputs, int(step.batch.tokens_after.max()), show=look if show else None
        )

    def _run_on_host(
        self,
        work: op.Work,
        step: StepTokens,
        inputs: inp.StepInputs,
        show: Callable[[op.Call], None] | None,
    ) -> None:
        """Time every operation; all else is no part of the step."""
        start_ns, spans = perf_counter_ns(), list[tuple[op.Call, int, int]]()
        run = op.Run(self.outputs, int(step.batch.tokens_after.max()), spans, show, self.mark)
        with self._range("launch"):
            op.run_layers(work, step.batch, inputs, run)
        if self.recorder.enabled or self.mark:
            counted, timed = self.work_of(step), []
            for call, began_ns, end_ns in spans:
                (name, indexer), schema = call.operation, call.layer.schema
                work_done = counted.of(name, schema, indexer=indexer)
                timed.append((call.name, schema.layer.attn.value, end_ns - began_ns, *work_done))
            self.recorder.keep_calls(timed)
        busy_ns = sum(end_ns - began_ns for _, began_ns, end_ns in spans)
        self.recorder.excluded_ns += perf_counter_ns() - start_ns - busy_ns

    @contextmanager
    def _making_inputs(self, step: StepTokens) -> Iterator[None]:
        with self.recorder.excluded(), self._range("inputs"):
            step.batch.check_current()
            yield

    def _range(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.mark is None else self.mark(name)

    def _decode_inputs(self, step: StepTokens) -> tuple[inp.StepInputs, Mapping[int, Tensor]]:
        """Data of a decode step, and the entries that layers gather, int32[B, K] by ratio."""
        after = step.batch.tokens_after.numpy()
        rows = step.rows(step.batch.request_ids.numpy(), step.batch.positions.numpy())
        chosen = {ratio: self.chooser.choose(after // ratio) for ratio in self._ratios}
        numbers, topk = torch.from_numpy(rows), chosen
        if self.gpu is not None:
            numbers = stage(numbers, self.device)
            topk = {ratio: stage(each, self.device) for ratio, each in chosen.items()}
        return self.inputs.take(numbers, topk, step.batch.positions), chosen

    def _chunk_rows(self, step: StepTokens) -> slice | Tensor:
        """Input rows of a prompt chunk: one after another, unless prompts share contents."""
        positions = step.batch.positions.numpy()
        if step.contents is not None:
            return stage(torch.from_numpy(step.rows(0, positions)), self.device)
        first = int(step.rows(0, positions[:1])[0])
        return slice(first, first + len(positions))  # a view, not a copy

    def _take_graphs(self, step: StepTokens) -> DecodeGraphs | None:
        """The graphs if it is their turn; observed steps take turns among themselves."""
        if self.gpu is None:
            return None
        self._turns[step.observed] += 1
        eager = self.gpu.in_turns and self._turns[step.observed] % 2 == 0
        return None if eager else self.gpu.graphs

    def _replay(
        self,
        graphs: DecodeGraphs,
        step: StepTokens,
        inputs: inp.StepInputs,
        show: Callable[[op.Call], None] | None,
    ) -> None:
        assert self.gpu is not None
        graph = graphs.graph_for(step.batch.num_requests)
        with self.recorder.excluded(), self._range("inputs"):
            graphs.load(inputs)
        with self._range("replay"), self._span("decode_graph", step):
            self.gpu.tables.publish()
            graphs.replay(graph, step.batch)
        if show is not None:
            with self.recorder.excluded():
                for call in graph.shown:
                    show(call)
                # The layers of a graph share outputs: read each again, to see what it wrote.
                reads = [
                    (layer, op.read_operations(layer, engine=self.in_place))
                    for layer in self.layers
                ]
                view = step.batch.to(self.device)
                op.run_layers(reads, view, inputs, self._run(step, show))

    def _show(
        self,
        step: StepTokens,
        asked: inp.Queries | None,
        chosen: Mapping[int, Tensor],
        call: op.Call,
    ) -> None:
        layer, (operation, indexer) = call.layer, call.operation
        if operation == "attend":
            assert asked is not None
            assert call.reads is not None
            self.observer.layer_attended(layer, step, asked, call.reads)
            return
        out = call.tensors["out"][: step.batch.num_requests]
        if operation == "gather_window":
            self.observer.window_gathered(layer, step, out)
        elif operation == "gather_topk":
            indices = chosen[layer.schema.layer.ratio]
            self.observer.entries_gathered(layer, step, indices, out, False)
        else:
            lengths = step.batch.tokens_after // layer.schema.layer.ratio
            entries = torch.arange(int(lengths.max())).expand(len(lengths), -1)
            indices = entries.masked_fill(entries >= lengths[:, None], -1)
            visible = out[:, : indices.shape[1]]
            self.observer.entries_gathered(layer, step, indices, visible, indexer)

    @contextmanager
    def _span(self, name: str, step: StepTokens) -> Iterator[None]:
        """Time a decode step on the host and on the GPU; one that is looked at is not timed."""
        if self.gpu is None or step.observed or not self.recorder.enabled:
            yield
            return
        start_ns = self.recorder.now_ns()
        with self.gpu.clock.span(f"{name}_device"):
            yield
        self.recorder.keep(f"{name}_host", start_ns)


class Requests:
    """Requests driven one by one, where no loop schedules them; one serial has the same tokens."""

    def __init__(self, manager: KVCacheManager, executor: StepExecutor) -> None:
        self.manager, self.executor = manager, executor

    def admit(self) -> int:
        """A slot for a request."""
        return self.manager.admit_request()

    def release(self, slot: int) -> None:
        """A request ends."""
        self.manager.release_request(slot, self.manager.generation(slot))

    def place(self, slot: int, serial: int, tokens: int) -> None:
        """Let a request that was just admitted hold a prompt, its end written as served."""
        prepare_forward(self.manager, [slot], [0], [tokens])
        self.executor.place(self.manager, slot, serial, tokens)

    def compute(self, slot: int, serial: int, *ends: int) -> None:
        """Compute a prompt in chunks up to each of these tokens, as far as they are ahead."""
        for end in ends:
            if end > self.manager.tokens[slot]:
                self.executor.prefill(self.step(slot, serial, end))

    def decode(self, slot: int, serial: int, steps: int, *, observed: bool = False) -> None:
        """Decode a token in each step."""
        for _ in range(steps):
            after = int(self.manager.tokens[slot]) + 1
            self.executor.decode(self.step(slot, serial, after, observed=observed))

    def step(self, slot: int, serial: int, after: int, *, observed: bool = False) -> StepTokens:
        """Prepare a request for the tokens up to ``after``; the caller executes them."""
        before = int(self.manager.tokens[slot])
        prepare_forward(self.manager, [slot], [before], [after])
        batch = Step.of(self.manager, [slot], [before], [after])
        return StepTokens(batch, np.array([serial]), np.array([after]), observed=observed)
