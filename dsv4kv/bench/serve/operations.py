"""What a step does to the layers of a cache, and the one loop that does it.

A layer's operations are listed once; a step runs them in order, each called by keyword with the
tensors of the layer, the step, the step's inputs and the outputs.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from dsv4kv.bench.serve.inputs import StepInputs
from dsv4kv.cache.layers import CompressedCache, LayerCache
from dsv4kv.cache.step import Step
from dsv4kv.errors import ConfigError
from dsv4kv.model.schedule import AttentionType, chooses_candidates
from dsv4kv.ops.spec import READS
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
    # takes (name, layer, start, end in ns) of every operation; None where a device runs them later
    spans: list[tuple[LayerOperation, LayerCache, int, int]] | None = None
    # is given a layer, an operation that read, its arguments and where reads wrote
    show: Callable[[LayerCache, LayerOperation, Tensors, Reads | None], None] | None = None
    # makes a range of a profiler around an operation
    mark: Callable[[str], AbstractContextManager[object]] | None = None


def run_layers(work: Work, step: Step, inputs: StepInputs, run: Run) -> None:
    """Run the operations of every layer, one after the other."""
    unmarked = nullcontext()
    for layer, operations in work:
        reads = None
        if ("attend", False) in operations:
            reads = run.outputs.reads(layer, step.num_tokens, run.longest_tokens)
        for each in operations:
            tensors = arguments(layer, each, step, inputs, run, reads)
            if tensors is None:
                continue
            function = getattr(layer.backend, each[0])
            with run.mark(f"{name_of(*each)} {layer.schema.layer.attn}") if run.mark else unmarked:
                start_ns = perf_counter_ns()
                function(**tensors)
                end_ns = perf_counter_ns()
            if run.spans is not None:
                run.spans.append((each, layer, start_ns, end_ns))
            if run.show is not None and (each[0] == "attend" or each[0].startswith("gather_")):
                run.show(layer, each, tensors, reads)


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
    if reads is not None and operation in READS:
        return _read_arguments(layer, operation, step, inputs, reads)
    if operation.startswith("gather_"):
        return _gather_arguments(layer, each, step, inputs, run)
    window = {"ring": layer.window, "values": inputs.window, **_tokens(step)}
    if operation == "window_insert":
        return window
    if operation == "step_write":
        parts = [_part_write(layer, part, step, inputs) for part in layer.pooled_parts]
        return {**window, "parts": tuple(parts)}
    pooled = indexer in layer.pooled_parts
    return (_pool_arguments if pooled else _insert_arguments)(layer, each, step, inputs)


def _part(layer: LayerCache, indexer: bool) -> CompressedCache:
    part = layer.indexer if indexer else layer.main
    assert part is not None
    return part


def _tokens(step: Step) -> Tensors:
    return {"slots": step.token_slots, "positions": step.positions}


def _pool_arguments(
    layer: LayerCache, each: LayerOperation, step: Step, inputs: StepInputs
) -> Tensors | None:
    """Tokens that go into a compressor state, and entries that come out."""
    operation, indexer = each
    part, group = _part(layer, indexer), layer.group
    assert part.compressor is not None
    assert group is not None
    pooling, done = {"compressor": part.compressor, "state": part.state}, step.completed[group]
    if operation == "flush":
        return {**pooling, "store": part.store, **done._asdict()} if len(done.entries) else None
    rows = inputs.compressors[part.compressor.channels]
    given = {**pooling, "kv": rows.kv, "score": rows.score}
    if operation == "state_append":
        _check_append(part, step)
        return {**given, **_tokens(step)}
    if step.num_requests != 1:
        raise ConfigError(f"a chunk belongs to one request, not to {step.num_requests}.")
    slot, start = step.first_token
    return {**given, "slot": slot, "start": start, "store": part.store, "entries": done.entries}


def _insert_arguments(
    layer: LayerCache, each: LayerOperation, step: Step, inputs: StepInputs
) -> Tensors:
    """Entries of one value each: as they are given, or normalised and rotated on the way."""
    operation, indexer = each
    part = _part(layer, indexer)
    assert layer.group is not None
    dims = part.store.layout.format.dims
    values = inputs.window if dims == inputs.window.shape[1] else inputs.projected[dims]
    entries = {"store": part.store, "entries": step.entries[layer.group]}
    if operation == "norm_rope_insert":
        given = {"compressor": part.compressor, "positions": step.positions}
        return {**entries, **given, "values": values}
    if operation == "indexer_insert":
        return {**entries, "keys": values, "hadamard": layer.hadamard}
    return {**entries, "values": values}


def _gather_arguments(
    layer: LayerCache, each: LayerOperation, step: Step, inputs: StepInputs, run: Run
) -> Tensors | None:
    (operation, indexer), requests = each, step.num_requests
    if operation == "gather_window":
        shape = requests, run.outputs.window_tokens, layer.model.head_dim
        lengths = {"slots": step.request_slots, "tokens": step.tokens_after}
        return {"ring": layer.window, **lengths, "out": run.outputs.take("window", *shape)}
    part = _part(layer, indexer)
    dims = part.store.layout.format.dims
    given = {
        "store": part.store,
        "table": layer.blocks,
        "slots": step.request_slots,
        "lengths": step.lengths[part.ratio],
    }
    if operation == "gather_topk":
        out = run.outputs.take("chosen", requests, run.outputs.index_topk, dims)
        return {**given, "indices": inputs.topk[part.ratio], "out": out}
    most = run.longest_tokens // part.ratio
    if not most:
        return None
    name = "indexer" if indexer else "all"
    return {**given, "out": run.outputs.take(name, requests, most, dims)}


def _part_write(layer: LayerCache, indexer: bool, step: Step, inputs: StepInputs) -> PartWrite:
    part = _part(layer, indexer)
    assert part.compressor is not None
    assert part.state is not None
    assert layer.group is not None
    _check_append(part, step)
    rows = inputs.compressors[part.compressor.channels]
    taken = part.compressor, part.state, rows.kv, rows.score
    return PartWrite(*taken, part.store, step.entries[layer.group])


def _check_append(part: CompressedCache, step: Step) -> None:
    """Raise ``ConfigError`` for more tokens of a request than the state holds until the flush."""
    if step.max_request_tokens > part.max_append_tokens:
        raise ConfigError(
            f"{step.max_request_tokens} tokens of a request together, and its compressor state "
            f"takes {part.max_append_tokens}: raise draft_tokens, or use compress_chunk."
        )


def _read_arguments(
    layer: LayerCache, operation: str, step: Step, inputs: StepInputs, reads: Reads
) -> Tensors | None:
    """A read in place; None where there is no key yet to choose from."""
    asked, spec, main = inputs.queries, layer.schema.layer, layer.main
    assert asked is not None
    if operation == "attend":
        entries = None
        if main is not None:
            assert layer.blocks is not None
            chosen = None if spec.attn is AttentionType.HCA else reads.chosen
            entries = Entries(main.store, layer.blocks, step.seen[main.ratio], chosen)
        return {
            "ring": layer.window,
            "slots": step.token_slots,
            "tokens": step.seen[1],
            "window": layer.model.window_tokens,
            "entries": entries,
            "queries": asked.attention,
            "sinks": asked.sinks,
            "scale": layer.model.head_dim**-0.5,
            "out": reads.attended,
            "lse": reads.lse,
        }
    if not reads.scores.shape[1]:
        return None
    if operation == "indexer_query":
        given = {"queries": asked.indexer, "weights": asked.weights}
        turns = {"turns": asked.turns[spec.ratio], "hadamard": layer.hadamard}
        return {**given, **turns, "out": reads.codes, "out_weights": reads.weights}
    seen = {"lengths": step.seen[spec.ratio]}
    if operation == "select_blocks":
        assert layer.model.candidates is not None
        size = layer.model.candidates.block_entries
        return {"scores": reads.scores, **seen, "block_entries": size, "out": reads.blocks}
    pages: Tensors = {"table": layer.blocks, "slots": step.token_slots, **seen}
    pages["blocks"] = reads.blocks if layer.is_narrow else None
    if operation == "index_scores":
        assert layer.indexer is not None
        queries = {"queries": reads.codes, "weights": reads.weights, "out": reads.scores}
        return {"store": layer.indexer.store, **pages, **queries}
    assert main is not None
    size = main.store.layout.entries
    into = {"page_entries": size, "out": reads.chosen, "entries": reads.entries}
    return {"scores": reads.scores, **pages, **into}
