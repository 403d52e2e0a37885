"""What a step does to one layer's cache, operation by operation, as a decoder would.

How much work a step's operations are: entries and useful bytes, counted on the host. Nothing is
asked of the cache, which is being checked.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.handle import CompressedCache, LayerCache, LayerCacheHandle
from dsv4kv.model.schedule import AttentionType, chooses_candidates, scores_candidates
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import table
from dsv4kv.ops.step_reads import Read, decode_reads
from dsv4kv.serve.inputs import Queries, StepInputs


@dataclass(frozen=True)
class Call:
    """One operation on one layer.

    Attributes:
        operation: Its name in ``ops.contract``.
        indexer: It works on the indexer keys, not on the compressed KV.
        run: Does it.
        out: What it reads into; None where it writes the cache.
        reads: What attention and the operations before it write; None where it is none of them.
    """

    operation: str
    indexer: bool
    run: Callable[[], None]
    out: Tensor | None = None
    reads: "Reads | None" = None

    @property
    def name(self) -> str:
        """See ``name_of``."""
        return name_of(self.operation, self.indexer)

    @property
    def is_shown(self) -> bool:
        """Whether an observer looks at what it read: gathers, and the last read of a layer."""
        return self.operation == "attend" or self.operation.startswith("gather_")


class Outputs:
    """Where gathers write: buffers that the layers of a step fill in rotation.

    They grow to the largest size asked for and never shrink or, once large enough, move.
    """

    def __init__(self, device: torch.device, index_topk: int, window_tokens: int) -> None:
        self._device = device
        self._index_topk = index_topk
        self._window_tokens = window_tokens
        self._buffers: dict[str, Tensor] = {}

    def chosen(self, requests: int, dims: int) -> Tensor:
        """For top-k gathers: bf16[B, K, dims]; the content is left over, as in all of them."""
        return self.take("chosen", requests, self._index_topk, dims)

    def all(self, requests: int, most: int, dims: int, *, indexer: bool) -> Tensor:
        """For gathers of all entries: bf16[B, most, dims]."""
        return self.take("indexer" if indexer else "all", requests, most, dims)

    def window(self, requests: int, dims: int) -> Tensor:
        """For window gathers: bf16[B, W, dims]."""
        return self.take("window", requests, self._window_tokens, dims)

    def reads(self, handle: LayerCacheHandle, longest_tokens: int) -> "Reads":
        """For the reads of a decode step of a layer."""
        layer, tokens = handle.layer, handle.num_tokens
        model, ratio = layer.model, max(1, layer.schema.layer.ratio)
        heads, candidates = model.index_heads, model.candidates
        kept = (tokens, candidates.blocks) if candidates else (tokens, 0)
        keys = longest_tokens // ratio
        if candidates and scores_candidates(model, layer.schema.layer):
            keys = candidates.blocks * candidates.block_entries
        return Reads(
            codes=self.take("codes", tokens, heads, model.index_dim, dtype=torch.uint8),
            weights=self.take("weights", tokens, heads, dtype=torch.float32),
            scores=self.take("scores", tokens, keys, dtype=torch.float32),
            blocks=self.take("blocks", *kept, dtype=torch.int32),
            chosen=self.take(f"chosen {ratio}", tokens, self._index_topk, dtype=torch.int32),
            entries=self.take("entries", tokens, self._index_topk, dtype=torch.int32),
            attended=self.take("attended", tokens, model.num_heads, model.head_dim),
            lse=self.take("lse", tokens, model.num_heads, dtype=torch.float32),
        )

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A tensor of this shape over the buffer ``name``, which is of one type."""
        size = torch.Size(shape).numel()
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return self._buffers[name][:size].view(shape)


@dataclass(frozen=True)
class Reads:
    """What the reads of a decode step write, layer by layer into the same memory.

    Layers that take what another one selected find it in ``chosen`` and ``blocks``, which the
    layers between leave as they are. The shapes are those of ``contract.Backend``.
    """

    codes: Tensor
    weights: Tensor
    scores: Tensor
    blocks: Tensor
    chosen: Tensor
    entries: Tensor
    attended: Tensor
    lse: Tensor


Step = tuple[str, bool]
"""An operation by its name in ``ops.contract``, and whether it works on indexer keys."""


def name_of(operation: str, indexer: bool) -> str:
    """Name in a record: operations on indexer keys and on compressed KV have different ones."""
    named = indexer and not operation.startswith("indexer_")
    return f"indexer_{operation}" if named else operation


def decode_operations(layer: LayerCache, *, fused: bool, engine: bool = False) -> list[Step]:
    """A decode step: insert, flush what is complete, read what attention reads.

    fused: insert and flush as one operation, where a layer has compressed KV.
    engine: read in place, as engines do; else gather.
    """
    reads = read_operations(layer, engine=engine)
    inserts = [_insertion(layer, part) for part in layer.parts if not layer.part(part).is_pooled]
    if fused and layer.pooled_parts:
        return [("step_write", False), *inserts, *reads]
    pooled = layer.pooled_parts
    writes = [(name, part) for part in pooled for name in ("state_append", "flush")]
    return [*_window(layer, "window_insert"), *writes, *inserts, *reads]


def _insertion(layer: LayerCache, indexer: bool) -> Step:
    """How entries of one value each are stored."""
    if layer.part(indexer).compressor is not None:
        return "norm_rope_insert", indexer
    return "indexer_insert" if indexer else "entry_insert", indexer


def _window(layer: LayerCache, operation: str) -> list[Step]:
    return [] if layer.window is None else [(operation, False)]


def all_decode_operations(layer: LayerCache, *, engine: bool = False) -> list[Step]:
    """Of a decode step fused and not: each of them once."""
    both = [decode_operations(layer, fused=fused, engine=engine) for fused in (False, True)]
    return list(dict.fromkeys(chain(*both)))


def read_operations(layer: LayerCache, *, engine: bool) -> list[Step]:
    """What a decode step reads of a layer: in place, as engines do, or gathered."""
    return attention_operations(layer) if engine else _gathers(layer)


def _gathers(layer: LayerCache) -> list[Step]:
    reads = [("gather_all", True)] if layer.indexer is not None else []
    if layer.main is not None:
        every = layer.schema.layer.attn is AttentionType.HCA
        reads.append(("gather_all" if every else "gather_topk", False))
    return [*reads, *_window(layer, "gather_window")]


def attention_operations(layer: LayerCache) -> list[Step]:
    """What a decode step of an engine reads of a layer: in place, and what it selected first.

    A layer for which another one selects, as the schedule says, only attends.
    """
    reads = ["attend"]
    if layer.indexer is not None and layer.schema.layer.selects:
        chooses = chooses_candidates(layer.model, layer.schema.layer)
        narrowed = ["select_blocks"] if chooses else []
        reads = ["indexer_query", "index_scores", *narrowed, "select_topk", *reads]
    return [(operation, False) for operation in reads]


def querying_ratios(layers: Iterable[LayerCache]) -> list[int]:
    """Ratios of the layers that make indexer queries, each once."""
    return sorted({each.schema.layer.ratio for each in layers if each.indexer is not None})


def prefill_operations(layer: LayerCache) -> list[Step]:
    """A prompt chunk of one request: insert and compress, then read what is visible."""
    kinds = ((False, layer.main), (True, layer.indexer))
    reads = [("gather_all", indexer) for indexer, part in kinds if part is not None]
    return [*chunk_writes(layer), *reads]


def chunk_writes(layer: LayerCache) -> list[Step]:
    """What a prompt chunk writes."""
    return _window(layer, "window_insert") + [
        ("compress_chunk", part) if layer.part(part).is_pooled else _insertion(layer, part)
        for part in layer.parts
    ]


def selecting_ratios(layers: Iterable[LayerCache]) -> list[int]:
    """Ratios of the layers that gather selected entries, each once."""
    return sorted(
        {layer.schema.layer.ratio for layer in layers if ("gather_topk", False) in _gathers(layer)}
    )


@dataclass(frozen=True)
class CallMaker:
    """Makes the calls of one layer in one step.

    Attributes:
        handle: The layer, bound to the step.
        inputs: The step's data.
        outputs: Where gathers write.
        longest_tokens: Most tokens of any request, or room for them.
    """

    handle: LayerCacheHandle
    inputs: StepInputs
    outputs: Outputs
    longest_tokens: int

    def make_all(self, steps: Iterable[Step]) -> Iterator[Call]:
        """The calls of operations in order; one that has nothing to do is left out."""
        for operation, indexer in steps:
            call = self.make(operation, indexer)
            if call is not None:
                yield call

    def make(self, operation: str, indexer: bool) -> Call | None:
        """The call of one operation; None where there is nothing to gather."""
        handle = self.handle
        match operation:
            case "window_insert":
                return Call(operation, False, partial(handle.write_swa, self.inputs.window))
            case "flush" | "step_write":
                flush = partial(handle.flush, indexer=indexer)
                run = flush if operation == "flush" else self._step_write()
                return Call(operation, indexer, run)
            case "gather_window":
                out = self.outputs.window(handle.num_requests, handle.layer.model.head_dim)
                return Call(operation, False, partial(handle.gather_swa_kv, out), out)
            case "gather_topk":
                return self._gather_topk()
            case "gather_all":
                return self._gather_all(indexer)
        return self._read(operation) if operation in READS else self._bring(operation, indexer)

    def _gather_topk(self) -> Call:
        handle, part = self.handle, self.handle.part(False)
        out = self.outputs.chosen(handle.num_requests, part.dims)
        gather = partial(handle.gather_compressed_kv, self.inputs.topk[part.ratio], out)
        return Call("gather_topk", False, gather, out)

    def _read(self, operation: str) -> Call | None:
        """A read in place; None where there is no key yet to choose from."""
        handle, asked = self.handle, self.inputs.queries
        assert asked is not None
        into = self.outputs.reads(handle, self.longest_tokens)
        run, out = self._reading(operation, asked, into)
        no_keys = operation != "attend" and not into.scores.shape[1]
        return None if no_keys else Call(operation, False, run, out, into)

    def _reading(
        self, operation: str, asked: Queries, into: Reads
    ) -> tuple[Callable[[], None], Tensor]:
        """What does a read, and its first output."""
        handle, spec = self.handle, self.handle.layer.schema.layer
        among = into.blocks if scores_candidates(handle.layer.model, spec) else None
        match operation:
            case "indexer_query":
                query = asked.indexer, asked.weights, asked.turns[spec.ratio]
                return partial(handle.make_queries, *query, into.codes, into.weights), into.codes
            case "index_scores":
                given = into.codes, into.weights, among
                return partial(handle.score_keys, *given, into.scores), into.scores
            case "select_blocks":
                return partial(handle.select_blocks, into.scores, into.blocks), into.blocks
            case "select_topk":
                best = into.scores, among, into.chosen, into.entries
                return partial(handle.select_topk, *best), into.chosen
        chosen = None if spec.attn is AttentionType.HCA else into.chosen
        wanted = asked.attention, asked.sinks, chosen
        return partial(handle.attend, *wanted, into.attended, into.lse), into.attended

    def _step_write(self) -> Callable[[], None]:
        parts = map(self.handle.part, self.handle.layer.pooled_parts)
        compressors = (part.pooling()[0] for part in parts)
        rows = [(taken.kv, taken.score) for taken in map(self.inputs.of, compressors)]
        return partial(self.handle.write_step, self.inputs.window, rows)

    def _bring(self, operation: str, indexer: bool) -> Call:
        """Tokens, to be pooled or to become entries as they are."""
        handle, part = self.handle, self.handle.part(indexer)
        if not part.is_pooled:
            values = self.inputs.values(part.dims)
            insert = partial(handle.insert_entries, values, indexer=indexer)
            return Call(operation, indexer, insert)
        rows = self.inputs.of(part.pooling()[0])
        write = handle.append_state if operation == "state_append" else handle.compress_chunk
        return Call(operation, indexer, partial(write, rows.kv, rows.score, indexer=indexer))

    def _gather_all(self, indexer: bool) -> Call | None:
        handle = self.handle
        part = handle.part(indexer)
        most = self.longest_tokens // part.ratio
        if not most:
            return None
        out = self.outputs.all(handle.num_requests, most, part.dims, indexer=indexer)
        gather = partial(handle.gather_all_compressed_kv, out, indexer=indexer)
        return Call("gather_all", indexer, gather, out)


Work = tuple[int, int]
"""Entries (rows, tokens) and useful bytes."""


@dataclass(frozen=True)
class StepWork:
    """The work of one step.

    Attributes:
        after: Tokens of every request after the step, int64[B].
        positions: Positions of the step's tokens, int64[T].
        index_topk: Entries that CSA layers read.
        window_tokens: Tokens of a window.
        schemas: All layers held, of which some read what others own; nothing where entries are
            gathered.
    """

    after: Ids
    positions: Ids
    index_topk: int
    window_tokens: int
    schemas: Sequence[LayerCacheSchema] = ()
    _reads: dict[tuple[int, str], Read] = field(default_factory=dict, init=False)

    def of(self, call: Call, layer: LayerCache) -> Work:
        """Entries and bytes of one operation on one layer."""
        if call.operation in READS:
            moved = self._read(call, layer).step_bytes(self._last)
            heads = _PER_ENTRY.get(call.operation)
            entries = self.flops(call, layer) // heads(layer) if heads else len(self.positions)
            return entries, moved
        if call.operation == "window_insert":
            return self._window_insert(layer)
        if call.operation == "step_write":
            return self._step_write(layer)
        if call.operation == "gather_window":
            return self._gather_window(layer)
        part = layer.indexer if call.indexer else layer.main
        assert part is not None
        return _COUNTS[call.operation](self, part)

    def flops(self, call: Call, layer: LayerCache) -> int:
        """Floating-point operations of one operation on one layer: of its matrix products."""
        if call.operation not in READS:
            return 0
        return int(self._read(call, layer).flops.sum())

    def _read(self, call: Call, layer: LayerCache) -> Read:
        if not self._reads:
            for read in decode_reads(layer.model, self.schemas, self.positions + 1):
                self._reads.update(dict.fromkeys(((i, read.operation) for i in read.layers), read))
        return self._reads[layer.schema.layer.layer_idx, call.operation]

    @cached_property
    def _last(self) -> Ids:
        """The last token of every request, int64[B]; those of a request are neighbours."""
        last, end = [], 0
        for tokens in self.after.tolist():
            end += tokens - int(self.positions[end])
            last.append(end - 1)
        return np.array(last)

    def _window_insert(self, layer: LayerCache) -> Work:
        assert layer.window is not None
        ring = layer.window.layout
        stored = min(len(self.positions), len(self.after) * ring.entries)
        return stored, table.insert_bytes(ring.format, stored)

    def _step_write(self, layer: LayerCache) -> Work:
        tokens, moved = self._window_insert(layer)
        for part in map(layer.part, layer.pooled_parts):
            (compressor, state), entry = part.pooling(), part.store.layout.format
            done, online, each = self._completed(part), state.dim() == 3, len(self.positions)
            moved += table.step_write_bytes(compressor, entry, each, done, online=online)
        return tokens, moved

    def _gather_window(self, layer: LayerCache) -> Work:
        assert layer.window is not None
        found = int(np.minimum(self.after, self.window_tokens).sum())
        entry = layer.window.layout.format
        return found, table.gather_window_bytes(entry, found, len(self.after))

    def _state_append(self, part: CompressedCache) -> Work:
        tokens, (compressor, state) = len(self.positions), part.pooling()
        online = state.dim() == 3
        return tokens, table.state_append_bytes(compressor, tokens, online=online)

    def _flush(self, part: CompressedCache) -> Work:
        flushed, entry = self._completed(part), part.store.layout.format
        compressor, state = part.pooling()
        online = state.dim() == 3
        return flushed, table.flush_bytes(compressor, entry, flushed, online=online)

    def _insert(self, part: CompressedCache) -> Work:
        stored = self._completed(part)
        return stored, table.insert_bytes(part.store.layout.format, stored)

    def _compress_chunk(self, part: CompressedCache) -> Work:
        tokens, entry = len(self.positions), part.store.layout.format
        compressor, state = part.pooling()
        kept = state.shape[2] if state.dim() == 4 else 3
        flushed = self._completed(part)
        return tokens, table.compress_chunk_bytes(compressor, entry, tokens, flushed, kept)

    def _gather_topk(self, part: CompressedCache) -> Work:
        lengths = self.after // part.ratio
        found = int(np.minimum(lengths, self.index_topk).sum())
        asked = len(lengths) * self.index_topk
        return found, table.gather_topk_bytes(part.store.layout.format, found, asked)

    def _gather_all(self, part: CompressedCache) -> Work:
        lengths, layout = self.after // part.ratio, part.store.layout
        found, blocks = int(lengths.sum()), int((-(-lengths // layout.entries)).sum())
        return found, table.gather_all_bytes(layout.format, found, blocks)

    def _completed(self, part: CompressedCache) -> int:
        return int(np.count_nonzero((self.positions + 1) % part.ratio == 0))


READS = ("indexer_query", "index_scores", "select_blocks", "select_topk", "attend")
"""What a decode step of an engine reads, in order."""

_PER_ENTRY: dict[str, Callable[[LayerCache], int]] = {
    "index_scores": lambda of: table.index_scores_flops(
        1, of.model.index_heads, of.model.index_dim
    ),
    "attend": lambda of: table.attend_flops(1, of.model.num_heads, of.model.head_dim),
}
"""Floating-point operations for each entry."""

_COUNTS: dict[str, Callable[[StepWork, CompressedCache], Work]] = {
    "norm_rope_insert": StepWork._insert,
    "entry_insert": StepWork._insert,
    "indexer_insert": StepWork._insert,
    "state_append": StepWork._state_append,
    "flush": StepWork._flush,
    "compress_chunk": StepWork._compress_chunk,
    "gather_topk": StepWork._gather_topk,
    "gather_all": StepWork._gather_all,
}
