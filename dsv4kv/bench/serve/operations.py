"""What a step does to the layers of a cache, and the one loop that does it.

A layer's operations are listed once; a step runs them in order, each called by keyword with the
tensors of the layer, the step, the step's inputs and the outputs.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv4kv.bench.serve.inputs import StepInputs
from dsv4kv.cache.layers import CompressedCache, LayerCache
from dsv4kv.cache.step import Step
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, chooses_candidates
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.ops.storage import Entries, PartWrite

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
    reads = read_operations(layer, engine=engine)
    inserts = [_insertion(layer, part) for part in layer.parts if part not in layer.pooled_parts]
    if fused and layer.pooled_parts:
        return [("step_write", False), *inserts, *reads]
    writes = [(name, part) for part in layer.pooled_parts for name in ("state_append", "flush")]
    return [*_window(layer, "window_insert"), *writes, *inserts, *reads]


def all_decode_operations(layer: LayerCache, *, engine: bool = False) -> list[LayerOperation]:
    """Of a decode step fused and not: each of them once."""
    both = [decode_operations(layer, fused=fused, engine=engine) for fused in (False, True)]
    return list(dict.fromkeys(chain(*both)))


def prefill_operations(layer: LayerCache) -> list[LayerOperation]:
    """A prompt chunk of one request: insert and compress, then read what is visible."""
    kinds = ((False, layer.main), (True, layer.indexer))
    reads = [("gather_all", indexer) for indexer, part in kinds if part is not None]
    return [*chunk_writes(layer), *reads]


def chunk_writes(layer: LayerCache) -> list[LayerOperation]:
    """What a prompt chunk writes."""
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


@dataclass
class Run:
    """How the operations of a step are run."""

    outputs: Outputs  # where reads write
    longest_tokens: int  # most tokens of a request, or room for them
    # takes every operation's; None where a device runs them later
    spans: "Spans | None" = None
    # is given every call that read
    show: "Callable[[Call], None] | None" = None
    # makes a range of a profiler around an operation
    mark: Callable[[str], AbstractContextManager[object]] | None = None


class Call(NamedTuple):
    """An operation on one layer, ready to be called."""

    layer: LayerCache
    operation: LayerOperation
    tensors: Tensors
    reads: Reads | None  # where reads in place write

    @property
    def name(self) -> str:
        """As in a record."""
        return name_of(*self.operation)


Spans = list[tuple[Call, int, int]]
"""Calls, with when they began and ended, in ns."""


def fill_calls(work: Work, step: Step, inputs: StepInputs, run: Run) -> list[Call]:
    """The calls of a step in order, their arguments filled: nothing is left to do between them."""
    calls = []
    for layer, operations in work:
        reads = None
        if ("attend", False) in operations:
            reads = run.outputs.reads(layer, step.num_tokens, run.longest_tokens)
        for each in operations:
            tensors = arguments(layer, each, step, inputs, run, reads)
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


def run_layers(work: Work, step: Step, inputs: StepInputs, run: Run) -> None:
    """Run the operations of every layer."""
    run_calls(fill_calls(work, step, inputs, run), run)


def arguments(
    layer: LayerCache,
    each: LayerOperation,
    step: Step,
    inputs: StepInputs,
    run: Run,
    reads: Reads | None,
) -> Tensors | None:
    """The arguments of one operation on one layer; None where it has nothing to do."""
    (operation, indexer), ratio = each, layer.schema.layer.ratio
    part = layer.indexer if indexer else layer.main
    given: Tensors = {
        "ring": layer.window,
        "table": layer.blocks,
        "hadamard": layer.hadamard,
        "values": inputs.window,
        "slots": step.token_slots,
        "positions": step.positions,
        "lengths": step.seen.get(ratio),
    }
    if part is not None:
        given |= {"store": part.store, "compressor": part.compressor, "state": part.state}
        given["page_entries"] = part.store.layout.entries
    own: Tensors | None = {}
    if operation in READS:
        assert reads is not None
        own = _of_read(operation, layer, step, inputs, reads)
    elif operation.startswith("gather_"):
        own = _of_gather(each, layer, part, step, inputs, run)
    elif operation == "step_write":
        own = {"parts": tuple(_part_write(layer, i, step, inputs) for i in layer.pooled_parts)}
    elif part is not None and operation != "window_insert":
        own = _of_write(operation, layer, part, step, inputs)
    if own is None:
        return None
    given |= own
    return {name: given[name] for name in OPERATIONS[operation].names}


def _of_gather(
    each: LayerOperation,
    layer: LayerCache,
    part: CompressedCache | None,
    step: Step,
    inputs: StepInputs,
    run: Run,
) -> Tensors | None:
    operation, ratio = each[0], layer.schema.layer.ratio
    rows, dims = run.outputs.window_tokens, layer.model.head_dim
    if part is not None and operation != "gather_window":
        every = run.longest_tokens // ratio
        rows = run.outputs.index_topk if operation == "gather_topk" else every
        dims = part.store.layout.format.dims
    if not rows:
        return None
    asked = {"slots": step.request_slots, "lengths": step.lengths.get(ratio)}
    asked |= {"tokens": step.tokens_after, "indices": inputs.topk.get(ratio)}
    return asked | {"out": run.outputs.take(name_of(*each), step.num_requests, rows, dims)}


def _of_write(
    operation: str, layer: LayerCache, part: CompressedCache, step: Step, inputs: StepInputs
) -> Tensors | None:
    assert layer.group is not None
    if operation == "flush":
        done = step.completed[layer.group]
        return done._asdict() if len(done.entries) else None
    values = inputs.entries(part.store.layout.format.dims)
    own: Tensors = {"entries": step.entries[layer.group], "values": values, "keys": values}
    own |= inputs.pooled(part.compressor)
    if operation == "state_append":
        _check_append(part, step)
    elif operation == "compress_chunk":
        if step.num_requests != 1:
            raise ConfigError(f"a chunk belongs to one request, not to {step.num_requests}.")
        slot, start = step.first_token
        done = step.completed[layer.group]
        own |= {"slot": slot, "start": start, "entries": done.entries}
    return own


def _of_read(
    operation: str, layer: LayerCache, step: Step, inputs: StepInputs, reads: Reads
) -> Tensors | None:
    """What a read of a decode step in place has of its own, by the names of its row."""
    if operation != "attend" and not reads.scores.shape[1]:
        return None  # no key yet to choose from
    model, ratio, asked = layer.model, layer.schema.layer.ratio, inputs.queries
    assert asked is not None
    if operation == "indexer_query":
        asks = {"queries": asked.indexer, "weights": asked.weights, "turns": asked.turns[ratio]}
        return asks | {"out": reads.codes, "out_weights": reads.weights}
    if operation == "select_blocks":
        assert model.candidates is not None
        entries = model.candidates.block_entries
        return {"scores": reads.scores, "block_entries": entries, "out": reads.blocks}
    if operation == "attend":
        found = None
        if layer.main is not None:
            assert layer.blocks is not None
            chosen = None if layer.schema.layer.attn is AttentionType.HCA else reads.chosen
            found = Entries(layer.main.store, layer.blocks, step.seen[ratio], chosen)
        asks = {"queries": asked.attention, "sinks": asked.sinks, "tokens": step.seen[1]}
        sizes = {"window": model.window_tokens, "scale": model.head_dim**-0.5}
        return asks | sizes | {"entries": found, "out": reads.attended, "lse": reads.lse}
    blocks = {"blocks": reads.blocks if layer.is_narrow else None}
    if operation == "select_topk":
        return blocks | {"scores": reads.scores, "out": reads.chosen, "entries": reads.entries}
    assert layer.indexer is not None
    keys = {"store": layer.indexer.store, "out": reads.scores}
    return blocks | keys | {"queries": reads.codes, "weights": reads.weights}


def _part_write(layer: LayerCache, indexer: bool, step: Step, inputs: StepInputs) -> PartWrite:
    part = layer.part(indexer)
    _check_append(part, step)
    assert part.compressor is not None
    assert part.state is not None
    assert layer.group is not None
    rows = inputs.pooled(part.compressor)
    given = part.compressor, part.state, rows["kv"], rows["score"]
    return PartWrite(*given, part.store, step.entries[layer.group])


def _check_append(part: CompressedCache, step: Step) -> None:
    """Raise ``ConfigError`` for more tokens of a request than the state holds until the flush."""
    if step.max_request_tokens > part.max_append_tokens:
        raise ConfigError(
            f"{step.max_request_tokens} tokens of a request together, and its compressor state "
            f"takes {part.max_append_tokens}: raise draft_tokens, or use compress_chunk."
        )
