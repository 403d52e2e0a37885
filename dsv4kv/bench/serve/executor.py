"""Runs a step's operations on real bytes, layer by layer, as a decoder would, and takes samples.

A layer's operations are listed once; a step runs them in order, each called by keyword with the
tensors of the layer, the step, the step's inputs and the outputs. Sampling is cheap to call;
nothing is aggregated.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.device import DeviceClock
from dsv4kv.bench.serve import inputs as inp
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import (
    CompressedCache,
    DeviceTables,
    KVCacheManager,
    LayerCache,
    stage,
)
from dsv4kv.cache.step import Step
from dsv4kv.model.config import AttentionType, chooses_candidates
from dsv4kv.model.plan import CHECKPOINT_TOKENS
from dsv4kv.ops.cuda.launch import dependent_launches
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.ops.storage import Entries, PartWrite
from dsv4kv.ops.work import StepWork

if TYPE_CHECKING:
    from dsv4kv.bench.serve.graphs import DecodeGraphs

LayerOperation = tuple[str, bool]  # an operation by its name, and whether it works on indexer keys

Tensors = dict[str, Any]  # arguments of an operation by keyword

Work = Sequence[tuple[LayerCache, Sequence[LayerOperation]]]
"""Layers in order, and the operations of a step on each."""


def name_of(operation: str, indexer: bool) -> str:
    """Name in a record: operations on indexer keys and on compressed KV have different ones."""
    named = indexer and not operation.startswith("indexer_")
    return f"indexer_{operation}" if named else operation


def decode_operations(
    layer: LayerCache, *, fused: bool, engine: bool = False
) -> list[LayerOperation]:
    """A decode step: insert, flush what is complete, read what attention reads.

    fused: insert and flush as one operation, where a layer has compressed KV.
    engine: read in place, as engines do; else gather.
    """
    pooled = layer.pooled_parts
    inserts = [_insertion(layer, part) for part in layer.parts if part not in pooled]
    writes = [("step_write", False)]
    if not fused or not pooled:
        appended = [(name, part) for part in pooled for name in ("state_append", "flush")]
        writes = [*_window(layer, "window_insert"), *appended]
    return [*writes, *inserts, *read_operations(layer, engine=engine)]


def all_decode_operations(layer: LayerCache, *, engine: bool = False) -> list[LayerOperation]:
    """Of a decode step fused and not: each of them once."""
    single, fused = (decode_operations(layer, fused=f, engine=engine) for f in (False, True))
    return list(dict.fromkeys([*single, *fused]))


def prefill_operations(layer: LayerCache) -> list[LayerOperation]:
    """A prompt chunk of one request: insert and compress, then read what is visible."""
    kinds = ((False, layer.main), (True, layer.indexer))
    reads = [("gather_all", indexer) for indexer, part in kinds if part is not None]
    return [*chunk_writes(layer), *reads]


def chunk_writes(layer: LayerCache) -> list[LayerOperation]:
    pooled = layer.pooled_parts
    return _window(layer, "window_insert") + [
        ("compress_chunk", part) if part in pooled else _insertion(layer, part)
        for part in layer.parts
    ]


def read_operations(layer: LayerCache, *, engine: bool) -> list[LayerOperation]:
    """What a decode step reads of a layer: in place, as engines do, or gathered."""
    if not engine:
        reads = [("gather_all", True)] if layer.indexer is not None else []
        if layer.main is not None:
            every = layer.schema.layer.attn is AttentionType.HCA
            reads.append(("gather_all" if every else "gather_topk", False))
        return [*reads, *_window(layer, "gather_window")]
    if layer.indexer is None or not layer.schema.layer.selects:
        return [("attend", False)]
    chooses = chooses_candidates(layer.model, layer.schema.layer)
    return [(read, False) for read in READS if read != "select_blocks" or chooses]


def _insertion(layer: LayerCache, indexer: bool) -> LayerOperation:
    if layer.part(indexer).compressor is not None:
        return "norm_rope_insert", indexer
    return "indexer_insert" if indexer else "entry_insert", indexer


def _window(layer: LayerCache, operation: str) -> list[LayerOperation]:
    return [] if layer.window is None else [(operation, False)]


def selecting_ratios(layers: Iterable[LayerCache]) -> list[int]:
    """Ratios of the layers that gather selected entries, each once."""
    gather = ("gather_topk", False)
    gathering = (each for each in layers if gather in read_operations(each, engine=False))
    return sorted({each.schema.layer.ratio for each in gathering})


@dataclass(frozen=True)
class Reads:
    """What the reads of a decode step write, layer by layer into the same memory.

    Layers that take what another one selected find it in ``chosen`` and ``blocks``, which the
    layers between leave as they are. Shapes: see ``ops.spec``.
    """

    codes: Tensor
    weights: Tensor
    scores: Tensor
    blocks: Tensor
    chosen: Tensor
    entries: Tensor
    attended: Tensor
    lse: Tensor


class Outputs:
    """Buffers that reads fill in rotation; they grow to the largest size and never shrink."""

    def __init__(self, device: torch.device, index_topk: int, window_tokens: int) -> None:
        self._device = device
        self.index_topk, self.window_tokens = index_topk, window_tokens
        self._buffers: dict[str, Tensor] = {}

    def another(self) -> "Outputs":
        """Outputs of the same sizes in other memory."""
        return Outputs(self._device, self.index_topk, self.window_tokens)

    def reads(self, layer: LayerCache, tokens: int, longest_tokens: int) -> Reads:
        """For the reads of a decode step of a layer."""
        model, ratio = layer.model, max(1, layer.schema.layer.ratio)
        heads, candidates, topk = model.index_heads, model.candidates, self.index_topk
        kept, keys = (tokens, candidates.blocks if candidates else 0), longest_tokens // ratio
        if candidates and layer.is_narrow:
            keys = candidates.blocks * candidates.block_entries
        return Reads(
            codes=self.take("codes", tokens, heads, model.index_dim, dtype=torch.uint8),
            weights=self.take("weights", tokens, heads, dtype=torch.float32),
            scores=self.take("scores", tokens, keys, dtype=torch.float32),
            blocks=self.take("blocks", *kept, dtype=torch.int32),
            chosen=self.take(f"chosen {ratio}", tokens, topk, dtype=torch.int32),
            entries=self.take("entries", tokens, topk, dtype=torch.int32),
            attended=self.take("attended", tokens, model.num_heads, model.head_dim),
            lse=self.take("lse", tokens, model.num_heads, dtype=torch.float32),
        )

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A tensor of this shape over the buffer ``name``, which is of one type."""
        size = torch.Size(shape).numel()
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return self._buffers[name][:size].view(shape)


class Call(NamedTuple):
    """An operation on one layer, ready to be called."""

    layer: LayerCache
    operation: LayerOperation
    tensors: Tensors
    reads: Reads | None  # where reads in place write

    @property
    def name(self) -> str:
        return name_of(*self.operation)


Spans = list[tuple[Call, int, int]]
"""Calls, with when they began and ended, in ns."""


@dataclass
class Run:
    """How the operations of a step are run."""

    outputs: Outputs  # where reads write
    longest_tokens: int  # most tokens of a request, or room for them
    spans: Spans | None = None  # takes every operation's; None where a device runs them later
    show: Callable[[Call], None] | None = None  # is given every call that read
    # makes a range of a profiler around an operation
    mark: Callable[[str], AbstractContextManager[object]] | None = None


def run_layers(work: Work, step: Step, inputs: inp.StepInputs, run: Run) -> None:
    """Run the operations of every layer."""
    run_calls(fill_calls(work, step, inputs, run), run)


def fill_calls(work: Work, step: Step, inputs: inp.StepInputs, run: Run) -> list[Call]:
    """The calls of a step in order, their arguments filled: nothing is left to do between them."""
    calls = []
    for layer, operations in work:
        reads = None
        if ("attend", False) in operations:
            reads = run.outputs.reads(layer, step.num_tokens, run.longest_tokens)
        filling = Filling(layer, step, inputs, run, reads)
        for each in operations:
            tensors = filling.arguments(each)
            if tensors is not None:
                calls.append(Call(layer, each, tensors, reads))
    return calls


def run_calls(calls: Iterable[Call], run: Run) -> None:
    """Run the calls of a step, one after the other."""
    unmarked = nullcontext()
    for call in calls:
        operation = call.operation[0]
        function = getattr(call.layer.backend, operation)
        marked = f"{call.name} {call.layer.schema.layer.attn}" if run.mark else ""
        with run.mark(marked) if run.mark else unmarked:
            start_ns = perf_counter_ns()
            function(**call.tensors)
            end_ns = perf_counter_ns()
        if run.spans is not None:
            run.spans.append((call, start_ns, end_ns))
        if run.show is not None and (operation == "attend" or operation.startswith("gather_")):
            run.show(call)


class Filling(NamedTuple):
    """What fills the arguments of operations on a layer."""

    layer: LayerCache
    step: Step
    inputs: inp.StepInputs
    run: Run
    reads: Reads | None

    def arguments(self, each: LayerOperation) -> Tensors | None:
        """The arguments of an operation; None where it has nothing to do."""
        (operation, indexer), layer, step = each, self.layer, self.step
        part = layer.indexer if indexer else layer.main
        given: Tensors = {
            "ring": layer.window,
            "table": layer.blocks,
            "hadamard": layer.hadamard,
            "values": self.inputs.window,
            "slots": step.token_slots,
            "positions": step.positions,
            "lengths": step.seen.get(layer.schema.layer.ratio),
        }
        if part is not None:
            given |= {"store": part.store, "compressor": part.compressor, "state": part.state}
            given["page_entries"] = part.store.layout.entries
        own: Tensors | None = {}
        if operation in READS:
            own = self._of_read(operation)
        elif operation.startswith("gather_"):
            own = self._of_gather(each, part)
        elif operation == "step_write":
            own = {"parts": tuple(map(self._part_write, layer.pooled_parts))}
        elif part is not None and operation != "window_insert":
            own = self._of_write(operation, part)
        if own is None:
            return None
        given |= own
        return {name: given[name] for name in OPERATIONS[operation].names}

    def _of_gather(self, each: LayerOperation, part: CompressedCache | None) -> Tensors | None:
        operation, ratio, outputs = each[0], self.layer.schema.layer.ratio, self.run.outputs
        rows, dims = outputs.window_tokens, self.layer.model.head_dim
        if part is not None and operation != "gather_window":
            every = self.run.longest_tokens // ratio
            rows = outputs.index_topk if operation == "gather_topk" else every
            dims = part.store.layout.format.dims
        if not rows:
            return None
        return {
            "slots": self.step.request_slots,
            "lengths": self.step.lengths.get(ratio),
            "tokens": self.step.tokens_after,
            "indices": self.inputs.topk.get(ratio),
            "out": outputs.take(name_of(*each), self.step.num_requests, rows, dims),
        }

    def _of_write(self, operation: str, part: CompressedCache) -> Tensors | None:
        step, group = self.step, self.layer.group
        assert group is not None
        if operation == "flush":
            done = step.completed[group]
            return done._asdict() if len(done.entries) else None
        values = self.inputs.entries(part.store.layout.format.dims)
        own: Tensors = {"entries": step.entries[group], "values": values, "keys": values}
        own |= self.inputs.pooled(part.compressor)
        if operation == "compress_chunk":
            slot, start = step.first_token
            own |= {"slot": slot, "start": start, "entries": step.completed[group].entries}
        return own

    def _part_write(self, indexer: bool) -> PartWrite:
        part, group = self.layer.part(indexer), self.layer.group
        assert part.compressor is not None
        assert part.state is not None
        assert group is not None
        rows = self.inputs.pooled(part.compressor)
        given = part.compressor, part.state, rows["kv"], rows["score"]
        return PartWrite(*given, part.store, self.step.entries[group])

    def _of_read(self, operation: str) -> Tensors | None:
        """What a read of a decode step in place has of its own, by the names of its row."""
        layer, step, reads, asked = self.layer, self.step, self.reads, self.inputs.queries
        model, ratio = layer.model, layer.schema.layer.ratio
        assert reads is not None
        assert asked is not None
        if operation == "attend":
            found = None
            if layer.main is not None:
                assert layer.blocks is not None
                chosen = None if layer.schema.layer.attn is AttentionType.HCA else reads.chosen
                found = Entries(layer.main.store, layer.blocks, step.seen[ratio], chosen)
            asks = {"queries": asked.attention, "sinks": asked.sinks, "tokens": step.seen[1]}
            sizes = {"window": model.window_tokens, "scale": model.head_dim**-0.5}
            return asks | sizes | {"entries": found, "out": reads.attended, "lse": reads.lse}
        if not reads.scores.shape[1]:
            return None  # no key yet to choose from
        if operation == "indexer_query":
            asks = {"queries": asked.indexer, "weights": asked.weights}
            outputs = {"out": reads.codes, "out_weights": reads.weights}
            return asks | outputs | {"turns": asked.turns[ratio]}
        if operation == "select_blocks":
            assert model.candidates is not None
            entries = model.candidates.block_entries
            return {"scores": reads.scores, "block_entries": entries, "out": reads.blocks}
        blocks = {"blocks": reads.blocks if layer.is_narrow else None}
        if operation == "select_topk":
            return blocks | {"scores": reads.scores, "out": reads.chosen, "entries": reads.entries}
        assert layer.indexer is not None
        keys = {"store": layer.indexer.store, "out": reads.scores}
        return blocks | keys | {"queries": reads.codes, "weights": reads.weights}


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


Observer = Callable[[StepTokens, Call, inp.StepInputs], None]
"""Looks at what a read returned, wherever that is."""


@dataclass(frozen=True)
class Gpu:
    """What only a run on a GPU has."""

    tables: DeviceTables  # block tables on the device
    clock: DeviceClock  # times steps there; a host's clock would time their launches
    graphs: "DecodeGraphs | None" = None  # captured decode steps; None launches every operation
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
    outputs: Outputs  # where reads write
    device: torch.device  # where the cache is
    gpu: Gpu | None = None  # none on the CPU
    contexts: inp.PlacedContexts | None = None  # places prompts; None where they are served
    # makes a range of a profiler; None where none looks
    mark: Callable[[str], AbstractContextManager[object]] | None = None
    _turns: Counter[bool] = field(default_factory=Counter, init=False)

    @cached_property
    def _decoding(self) -> Work:
        fused, engine = self.gpu is not None, self.in_place  # each is timed by itself on the CPU
        return [(e, decode_operations(e, fused=fused, engine=engine)) for e in self.layers]

    @cached_property
    def _prefilling(self) -> Work:
        return [(layer, prefill_operations(layer)) for layer in self.layers]

    @cached_property
    def _ratios(self) -> list[int]:
        return [] if self.in_place else selecting_ratios(self.layers)

    @property
    def in_place(self) -> bool:
        """Whether decode steps read in place, as engines do."""
        return self.inputs.asks is not None

    def decode(self, step: StepTokens) -> None:
        """One token of every request, or one and its drafts: insert, flush, read."""
        batch, gpu = step.batch, self.gpu
        graphs = gpu.graphs if gpu is not None else None
        if gpu is not None and gpu.in_turns:  # observed steps take turns among themselves
            self._turns[step.observed] += 1
            graphs = graphs if self._turns[step.observed] % 2 else None
        with self._making_inputs(step):
            after, positions = batch.tokens_after.numpy(), batch.positions.numpy()
            rows = torch.from_numpy(step.rows(batch.request_ids.numpy(), positions))
            topk = {ratio: self.chooser.choose(after // ratio) for ratio in self._ratios}
            if gpu is not None:
                rows = stage(rows, self.device)
                topk = {ratio: stage(each, self.device) for ratio, each in topk.items()}
            inputs = self.inputs.take(rows, topk, batch.positions)
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
        # early enough for ring and states
        rows = plan.config.window_tokens + plan.draft_tokens
        written = max(0, (tokens - rows) // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS)
        batch = Step.of(manager, [slot], [written], after)
        step = StepTokens(batch, np.array([serial]), after)
        if self.gpu is not None:
            self.gpu.tables.publish()
        inputs = self.inputs.take(self._chunk_rows(step), {})
        writes = [(layer, chunk_writes(layer)) for layer in self.layers]
        run_layers(writes, step.batch.to(self.device), inputs, self._run(step, inputs))
        self.contexts.place(slot, serial, tokens)

    def step_operations(self, layer: LayerCache) -> list[LayerOperation]:
        """Operations of a decode step on a layer."""
        fused = self.gpu is not None and self.gpu.fused
        return decode_operations(layer, fused=fused, engine=self.in_place)

    def work(self, after: Ids, positions: Ids) -> StepWork:
        """Of a step that leaves requests with ``after`` tokens, at positions of its tokens."""
        schemas = [layer.schema for layer in self.layers]
        return StepWork(self.layers[0].model, schemas, after, positions)

    def _run(self, step: StepTokens, inputs: inp.StepInputs, spans: Spans | None = None) -> Run:
        """How a step is run; with ``spans`` its caller excludes the time that looking takes."""

        def show(call: Call) -> None:
            with self.recorder.excluded() if spans is None else nullcontext():
                self.observer(step, call, inputs)

        longest, mark = int(step.batch.tokens_after.max()), None if spans is None else self.mark
        return Run(self.outputs, longest, spans, show if step.observed else None, mark)

    def _execute(
        self, work: Work, step: StepTokens, inputs: inp.StepInputs, span: str = ""
    ) -> None:
        """Run operations one by one; ``span`` names what is timed of them on a GPU."""
        if self.gpu is None:
            self._run_on_host(work, step, inputs)
            return
        with self.recorder.excluded():
            run = self._run(step, inputs)
            calls = fill_calls(work, step.batch.to(self.device), inputs, run)
        dependent = bool(span) and self.gpu.dependent
        with self._range("launch"), self._span(span, step), dependent_launches(dependent):
            self.gpu.tables.publish()
            run_calls(calls, run)

    def _run_on_host(self, work: Work, step: StepTokens, inputs: inp.StepInputs) -> None:
        """Time every operation; all else is no part of the step."""
        start_ns, spans, recorder = perf_counter_ns(), Spans(), self.recorder
        with self._range("launch"):
            run_layers(work, step.batch, inputs, self._run(step, inputs, spans))
        if recorder.enabled:
            counted = self.work(step.batch.tokens_after.numpy(), step.batch.positions.numpy())
            for call, began_ns, end_ns in spans:
                (name, indexer), schema = call.operation, call.layer.schema
                done, kind = counted.of(name, schema, indexer=indexer), schema.layer.attn.value
                if done[0]:  # one without entries is no sample; whole, though Ctrl-C comes
                    recorder.operations[call.name, kind].extend((end_ns - began_ns, *done))
        busy_ns = sum(end_ns - began_ns for _, began_ns, end_ns in spans)
        recorder.excluded_ns += perf_counter_ns() - start_ns - busy_ns

    @contextmanager
    def _making_inputs(self, step: StepTokens) -> Iterator[None]:
        with self.recorder.excluded(), self._range("inputs"):
            yield

    def _range(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.mark is None else self.mark(name)

    def _chunk_rows(self, step: StepTokens) -> slice | Tensor:
        """Input rows of a prompt chunk: one after another, unless prompts share contents."""
        positions = step.batch.positions.numpy()
        if step.contents is not None:
            return stage(torch.from_numpy(step.rows(0, positions)), self.device)
        first = int(step.rows(0, positions[:1])[0])
        return slice(first, first + len(positions))  # a view, not a copy

    def _replay(self, graphs: "DecodeGraphs", step: StepTokens, inputs: inp.StepInputs) -> None:
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
                reads = [(e, read_operations(e, engine=self.in_place)) for e in self.layers]
                view, run = step.batch.to(self.device), self._run(step, inputs, Spans())
                run_layers(reads, view, inputs, run)

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
