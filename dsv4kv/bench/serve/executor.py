"""Runs a step's operations on real bytes, layer by layer, as a decoder would, and takes samples.

Sampling is cheap to call; nothing is aggregated.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter_ns

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
        if self.enabled:
            self.latencies[name].append(self.now_ns() - start_ns)

    def keep_call(self, name: str, layer_type: str, *sample: int) -> None:
        """Keep what an operation took; one without entries is no sample."""
        if self.enabled and sample[1]:
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


Observer = Callable[[StepTokens, op.Call, inp.StepInputs], None]
"""Looks at what a read returned, wherever that is."""


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
    observer: Observer  # is shown the reads of observed steps
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
            inputs = self._decode_inputs(step)
        if graphs is not None:
            self._replay(graphs, step, inputs)
        else:
            self._execute(self._decoding, step, inputs, "decode_eager")

    def prefill(self, step: StepTokens) -> None:
        """One prompt chunk of one request: insert and compress, then read what is visible."""
        with self._making_inputs(step):
            inputs = self.inputs.take(self._chunk_rows(step), {})
        self._execute(self._prefilling, step, inputs)

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
        op.run_layers(writes, step.batch.to(self.device), inputs, self._run(step, inputs))
        self.contexts.place(slot, serial, tokens)

    def step_operations(self, layer: LayerCache) -> list[op.LayerOperation]:
        """Operations of a decode step on a layer."""
        fused = self.gpu is not None and self.gpu.fused
        return op.decode_operations(layer, fused=fused, engine=self.in_place)

    def work_of(self, step: StepTokens) -> StepWork:
        """Counts entries and bytes of a step's operations."""
        after, positions = step.batch.tokens_after.numpy(), step.batch.positions.numpy()
        return StepWork(self.counted, after, positions)

    def _run(
        self, step: StepTokens, inputs: inp.StepInputs, spans: op.Spans | None = None
    ) -> op.Run:
        """How a step is run; with ``spans`` its caller excludes the time that looking takes."""

        def show(call: op.Call) -> None:
            with self.recorder.excluded() if spans is None else nullcontext():
                self.observer(step, call, inputs)

        longest, mark = int(step.batch.tokens_after.max()), None if spans is None else self.mark
        return op.Run(self.outputs, longest, spans, show if step.observed else None, mark)

    def _execute(
        self, work: op.Work, step: StepTokens, inputs: inp.StepInputs, span: str = ""
    ) -> None:
        """Run operations one by one; ``span`` names what is timed of them on a GPU."""
        if self.gpu is None:
            self._run_on_host(work, step, inputs)
            return
        with self.recorder.excluded():
            run = self._run(step, inputs)
            calls = op.fill_calls(work, step.batch.to(self.device), inputs, run)
        dependent = bool(span) and self.gpu.dependent
        with self._range("launch"), self._span(span, step), dependent_launches(dependent):
            self.gpu.tables.publish()
            op.run_calls(calls, run)

    def _run_on_host(self, work: op.Work, step: StepTokens, inputs: inp.StepInputs) -> None:
        """Time every operation; all else is no part of the step."""
        start_ns, spans = perf_counter_ns(), op.Spans()
        with self._range("launch"):
            op.run_layers(work, step.batch, inputs, self._run(step, inputs, spans))
        if self.recorder.enabled:
            counted = self.work_of(step)
            for call, began_ns, end_ns in spans:
                (name, indexer), schema = call.operation, call.layer.schema
                work_done, kind = counted.of(name, schema, indexer=indexer), schema.layer.attn
                self.recorder.keep_call(call.name, kind.value, end_ns - began_ns, *work_done)
        busy_ns = sum(end_ns - began_ns for _, began_ns, end_ns in spans)
        self.recorder.excluded_ns += perf_counter_ns() - start_ns - busy_ns

    @contextmanager
    def _making_inputs(self, step: StepTokens) -> Iterator[None]:
        with self.recorder.excluded(), self._range("inputs"):
            step.batch.check_current()
            yield

    def _range(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.mark is None else self.mark(name)

    def _decode_inputs(self, step: StepTokens) -> inp.StepInputs:
        """Data of a decode step, and the entries that layers gather."""
        after = step.batch.tokens_after.numpy()
        rows = step.rows(step.batch.request_ids.numpy(), step.batch.positions.numpy())
        topk = {ratio: self.chooser.choose(after // ratio) for ratio in self._ratios}
        numbers = torch.from_numpy(rows)
        if self.gpu is not None:
            numbers = stage(numbers, self.device)
            topk = {ratio: stage(each, self.device) for ratio, each in topk.items()}
        return self.inputs.take(numbers, topk, step.batch.positions)

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

    def _replay(self, graphs: DecodeGraphs, step: StepTokens, inputs: inp.StepInputs) -> None:
        assert self.gpu is not None
        graph = graphs.graph_for(step.batch.num_requests)
        with self.recorder.excluded(), self._range("inputs"):
            graphs.load(inputs)
        with self._range("replay"), self._span("decode_graph", step):
            self.gpu.tables.publish()
            graphs.replay(graph, step.batch)
        if step.observed:
            with self.recorder.excluded():
                for call in graph.shown:
                    self.observer(step, call, inputs)
                # The layers of a graph share outputs: read each again, to see what it wrote.
                reads = [(e, op.read_operations(e, engine=self.in_place)) for e in self.layers]
                view, run = step.batch.to(self.device), self._run(step, inputs, op.Spans())
                op.run_layers(reads, view, inputs, run)

    @contextmanager
    def _span(self, name: str, step: StepTokens) -> Iterator[None]:
        """Time a decode step on the host and on the GPU; one that is looked at is not timed."""
        if self.gpu is None or not name or step.observed or not self.recorder.enabled:
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
