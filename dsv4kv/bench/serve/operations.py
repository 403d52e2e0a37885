"""What a step does to the layers of a cache, and the one loop that does it.

A layer's operations are listed once; a step runs them in order, each called by keyword with the
tensors of the layer, the step, the step's inputs and the outputs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsv4kv.bench.serve.inputs import CompressorInputs, StepInputs
from dsv4kv.cache.layers import CompressedCache, LayerCache
from dsv4kv.cache.step import Step
from dsv4kv.errors import ConfigError
from dsv4kv.model.schedule import AttentionType, chooses_candidates
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.ops.storage import Entries, PartWrite

LayerOperation = tuple[str, bool]
"""An operation by its name, and whether it works on indexer keys."""

Tensors = dict[str, Any]
"""Arguments of an operation by keyword."""

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
    # takes (call, start, end in ns) of every operation; None where a device runs them later
    spans: "list[tuple[Call, int, int]] | None" = None
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
    operation, indexer = each
    at = _Place(layer, layer.indexer if indexer else layer.main, step, inputs, run, reads)
    if operation == "state_append":
        _check_append(at.part, step)
    elif operation == "compress_chunk" and step.num_requests != 1:
        raise ConfigError(f"a chunk belongs to one request, not to {step.num_requests}.")
    if operation in _NOTHING and _NOTHING[operation](at):
        return None
    return {name: give(at) for name, give in _giving(operation)}


@cache
def _giving(operation: str) -> "list[tuple[str, Callable[[_Place], Any]]]":
    """What gives each argument of an operation, as its row lists them."""
    given = _USUAL | _OWN.get(operation, {})
    return [(name, given[name]) for name in OPERATIONS[operation].names]


class _Place(NamedTuple):
    """Where an operation is called, and what it may ask for there."""

    layer: LayerCache
    part: Any  # the compressed KV that it works on; None without
    step: Step
    inputs: Any  # ``StepInputs``, whose queries are there for operations that ask for them
    run: Run
    reads: Any  # ``Reads``, likewise

    @property
    def done(self) -> Any:
        """Groups that the step completes."""
        return self.step.completed[self.group]

    @property
    def group(self) -> Any:
        return self.layer.group

    @property
    def ratio(self) -> int:
        return self.layer.schema.layer.ratio

    @property
    def longest(self) -> int:
        """Most entries of a request."""
        return self.run.longest_tokens // self.ratio

    @property
    def rows(self) -> CompressorInputs:
        found: CompressorInputs = self.inputs.compressors[self.part.compressor.channels]
        return found

    def values(self) -> Tensor:
        """Values of entries, as wide as these."""
        dims, window = self.part.store.layout.format.dims, self.inputs.window
        found: Tensor = window if dims == window.shape[1] else self.inputs.projected[dims]
        return found

    def gathered(self, name: str, rows: int) -> Tensor:
        """Room for ``rows`` entries of each request."""
        shape = self.step.num_requests, rows, self.part.store.layout.format.dims
        return self.run.outputs.take(name, *shape)

    def window(self) -> Tensor:
        shape = self.run.outputs.window_tokens, self.layer.model.head_dim
        return self.run.outputs.take("window", self.step.num_requests, *shape)

    def writes(self, indexer: bool) -> PartWrite:
        """A part of a step's write."""
        at = self._replace(part=self.layer.indexer if indexer else self.layer.main)
        _check_append(at.part, self.step)
        given = at.part.compressor, at.part.state, at.rows.kv, at.rows.score
        return PartWrite(*given, at.part.store, at.step.entries[at.group])

    def entries(self) -> Entries | None:
        """What attention reads of compressed KV."""
        if self.part is None:
            return None
        assert self.layer.blocks is not None
        every = self.layer.schema.layer.attn is AttentionType.HCA
        chosen = None if every else self.reads.chosen
        return Entries(self.part.store, self.layer.blocks, self.step.seen[self.ratio], chosen)


_Given = dict[str, Callable[[_Place], Any]]

_USUAL: _Given = {
    "ring": lambda at: at.layer.window,
    "store": lambda at: at.part.store,
    "table": lambda at: at.layer.blocks,
    "compressor": lambda at: at.part.compressor,
    "state": lambda at: at.part.state,
    "values": lambda at: at.values(),
    "keys": lambda at: at.values(),
    "kv": lambda at: at.rows.kv,
    "score": lambda at: at.rows.score,
    "hadamard": lambda at: at.layer.hadamard,
    "slots": lambda at: at.step.token_slots,
    "positions": lambda at: at.step.positions,
    "lengths": lambda at: at.step.seen[at.ratio],
    "entries": lambda at: at.step.entries[at.group],
    "scores": lambda at: at.reads.scores,
    "blocks": lambda at: at.reads.blocks if at.layer.is_narrow else None,
    "window": lambda at: at.layer.model.window_tokens,
    "scale": lambda at: at.layer.model.head_dim**-0.5,
    "page_entries": lambda at: at.part.store.layout.entries,
    "block_entries": lambda at: at.layer.model.candidates.block_entries,  # type: ignore[union-attr]
    "sinks": lambda at: at.inputs.queries.sinks,
    "turns": lambda at: at.inputs.queries.turns[at.ratio],
}
"""What an argument of this name is, unless the operation has its own."""

_NOTHING: _Given = {
    "flush": lambda at: not len(at.done.entries),
    "gather_all": lambda at: not at.longest,
    # no key yet to choose from
    **dict.fromkeys(READS[:-1], lambda at: not at.reads.scores.shape[1]),
}
"""Whether an operation has nothing to do."""

_GATHERING: _Given = {
    "slots": lambda at: at.step.request_slots,
    "lengths": lambda at: at.step.lengths[at.part.ratio],
}
_OWN: Mapping[str, _Given] = {
    "window_insert": {"values": lambda at: at.inputs.window},
    "step_write": {
        "values": lambda at: at.inputs.window,
        "parts": lambda at: tuple(map(at.writes, at.layer.pooled_parts)),
    },
    "flush": {
        "slots": lambda at: at.done.slots,
        "positions": lambda at: at.done.positions,
        "entries": lambda at: at.done.entries,
    },
    "compress_chunk": {
        "slot": lambda at: at.step.first_token[0],
        "start": lambda at: at.step.first_token[1],
        "entries": lambda at: at.done.entries,
    },
    "gather_topk": {
        **_GATHERING,
        "indices": lambda at: at.inputs.topk[at.part.ratio],
        "out": lambda at: at.gathered("chosen", at.run.outputs.index_topk),
    },
    "gather_all": {
        **_GATHERING,
        "out": lambda at: at.gathered(
            "all" if at.part is at.layer.main else "indexer", at.longest
        ),
    },
    "gather_window": {
        **_GATHERING,
        "tokens": lambda at: at.step.tokens_after,
        "out": lambda at: at.window(),
    },
    "indexer_query": {
        "queries": lambda at: at.inputs.queries.indexer,
        "weights": lambda at: at.inputs.queries.weights,
        "out": lambda at: at.reads.codes,
        "out_weights": lambda at: at.reads.weights,
    },
    "index_scores": {
        "store": lambda at: at.layer.indexer.store,  # type: ignore[union-attr]
        "queries": lambda at: at.reads.codes,
        "weights": lambda at: at.reads.weights,
        "out": lambda at: at.reads.scores,
    },
    "select_blocks": {"out": lambda at: at.reads.blocks},
    "select_topk": {"out": lambda at: at.reads.chosen, "entries": lambda at: at.reads.entries},
    "attend": {
        "tokens": lambda at: at.step.seen[1],
        "entries": lambda at: at.entries(),
        "queries": lambda at: at.inputs.queries.attention,
        "out": lambda at: at.reads.attended,
        "lse": lambda at: at.reads.lse,
    },
}


def _check_append(part: CompressedCache, step: Step) -> None:
    """Raise ``ConfigError`` for more tokens of a request than the state holds until the flush."""
    if step.max_request_tokens > part.max_append_tokens:
        raise ConfigError(
            f"{step.max_request_tokens} tokens of a request together, and its compressor state "
            f"takes {part.max_append_tokens}: raise draft_tokens, or use compress_chunk."
        )
