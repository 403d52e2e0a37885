"""What a step does to one layer's cache, operation by operation, as a decoder would.

How much work a step's operations are: entries and useful bytes, counted on the host. Nothing is
asked of the cache, which is being checked.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.handle import CompressedCache, LayerCache, LayerCacheHandle
from dsv4kv.model.schedule import AttentionType
from dsv4kv.ops import traffic
from dsv4kv.serve.inputs import StepInputs


@dataclass(frozen=True)
class Call:
    """One operation on one layer.

    Attributes:
        operation: Its name in ``ops.contract``.
        indexer: It works on the indexer keys, not on the compressed KV.
        run: Does it.
        out: What it gathers into; None where it writes the cache.
    """

    operation: str
    indexer: bool
    run: Callable[[], None]
    out: Tensor | None = None

    @property
    def name(self) -> str:
        """See ``name_of``."""
        return name_of(self.operation, self.indexer)


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

    def take(self, name: str, *shape: int) -> Tensor:
        """A bf16 tensor of this shape over the buffer ``name``."""
        size = torch.Size(shape).numel()
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = torch.empty(size, dtype=torch.bfloat16, device=self._device)
        return self._buffers[name][:size].view(shape)


Step = tuple[str, bool]
"""An operation by its name in ``ops.contract``, and whether it works on indexer keys."""


def name_of(operation: str, indexer: bool) -> str:
    """Name in a record: indexer keys are told apart from compressed KV."""
    return f"indexer_{operation}" if indexer else operation


def decode_operations(layer: LayerCache, *, fused: bool) -> list[Step]:
    """A decode step: insert, flush what is complete, read what attention reads.

    fused: insert and flush as one operation, where a layer has compressed KV.
    """
    if fused and layer.parts:
        return [("step_write", False), *read_operations(layer)]
    writes = [(name, part) for part in layer.parts for name in ("state_append", "flush")]
    return [("window_insert", False), *writes, *read_operations(layer)]


def all_decode_operations(layer: LayerCache) -> list[Step]:
    """Of a decode step fused and not: each of them once."""
    both = [decode_operations(layer, fused=fused) for fused in (False, True)]
    return list(dict.fromkeys(chain(*both)))


def read_operations(layer: LayerCache) -> list[Step]:
    """What the attention of a decode step reads of a layer."""
    reads = [("gather_all", True)] if layer.indexer is not None else []
    if layer.main is not None:
        every = layer.schema.layer.attn is AttentionType.HCA
        reads.append(("gather_all" if every else "gather_topk", False))
    return [*reads, ("gather_window", False)]


def prefill_operations(layer: LayerCache) -> list[Step]:
    """A prompt chunk of one request: insert and compress, then read what is visible."""
    parts = [(name, part) for part in layer.parts for name in ("compress_chunk", "gather_all")]
    return [("window_insert", False), *parts]


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
                dims = handle.layer.window.layout.format.dims
                out = self.outputs.window(handle.num_requests, dims)
                return Call(operation, False, partial(handle.gather_swa_kv, out), out)
            case "gather_topk":
                dims = handle.part(False).compressor.dim
                out = self.outputs.chosen(handle.num_requests, dims)
                gather = partial(handle.gather_compressed_kv, self.inputs.topk, out)
                return Call(operation, False, gather, out)
            case "gather_all":
                return self._gather_all(indexer)
        return self._compress(operation, indexer)

    def _step_write(self) -> Callable[[], None]:
        parts = (self.handle.part(indexer).compressor for indexer in self.handle.layer.parts)
        rows = [(taken.kv, taken.score) for taken in map(self.inputs.of, parts)]
        return partial(self.handle.write_step, self.inputs.window, rows)

    def _compress(self, operation: str, indexer: bool) -> Call:
        handle = self.handle
        rows = self.inputs.of(handle.part(indexer).compressor)
        write = handle.append_state if operation == "state_append" else handle.compress_chunk
        return Call(operation, indexer, partial(write, rows.kv, rows.score, indexer=indexer))

    def _gather_all(self, indexer: bool) -> Call | None:
        handle = self.handle
        compressor = handle.part(indexer).compressor
        most = self.longest_tokens // compressor.ratio
        if not most:
            return None
        out = self.outputs.all(handle.num_requests, most, compressor.dim, indexer=indexer)
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
    """

    after: Ids
    positions: Ids
    index_topk: int
    window_tokens: int

    def of(self, call: Call, layer: LayerCache) -> Work:
        """Entries and bytes of one operation on one layer."""
        if call.operation == "window_insert":
            return self._window_insert(layer)
        if call.operation == "step_write":
            return self._step_write(layer)
        if call.operation == "gather_window":
            return self._gather_window(layer)
        part = layer.indexer if call.indexer else layer.main
        assert part is not None
        return _COUNTS[call.operation](self, part)

    def _window_insert(self, layer: LayerCache) -> Work:
        ring = layer.window.layout
        stored = min(len(self.positions), len(self.after) * ring.entries)
        return stored, traffic.insert_bytes(ring.format, stored)

    def _step_write(self, layer: LayerCache) -> Work:
        tokens, moved = self._window_insert(layer)
        for part in (layer.main, layer.indexer):
            if part is not None:
                done, entry = self._completed(part), part.store.layout.format
                online, each = part.state.dim() == 3, len(self.positions)
                moved += traffic.step_write_bytes(
                    part.compressor, entry, each, done, online=online
                )
        return tokens, moved

    def _gather_window(self, layer: LayerCache) -> Work:
        found = int(np.minimum(self.after, self.window_tokens).sum())
        entry = layer.window.layout.format
        return found, traffic.gather_window_bytes(entry, found, len(self.after))

    def _state_append(self, part: CompressedCache) -> Work:
        tokens = len(self.positions)
        online = part.state.dim() == 3
        return tokens, traffic.state_append_bytes(part.compressor, tokens, online=online)

    def _flush(self, part: CompressedCache) -> Work:
        flushed, entry = self._completed(part), part.store.layout.format
        online = part.state.dim() == 3
        return flushed, traffic.flush_bytes(part.compressor, entry, flushed, online=online)

    def _compress_chunk(self, part: CompressedCache) -> Work:
        tokens, entry = len(self.positions), part.store.layout.format
        kept = part.state.shape[2] if part.state.dim() == 4 else 3
        flushed = self._completed(part)
        return tokens, traffic.compress_chunk_bytes(part.compressor, entry, tokens, flushed, kept)

    def _gather_topk(self, part: CompressedCache) -> Work:
        lengths = self.after // part.compressor.ratio
        found = int(np.minimum(lengths, self.index_topk).sum())
        asked = len(lengths) * self.index_topk
        return found, traffic.gather_topk_bytes(part.store.layout.format, found, asked)

    def _gather_all(self, part: CompressedCache) -> Work:
        lengths, layout = self.after // part.compressor.ratio, part.store.layout
        found, blocks = int(lengths.sum()), int((-(-lengths // layout.entries)).sum())
        return found, traffic.gather_all_bytes(layout.format, found, blocks)

    def _completed(self, part: CompressedCache) -> int:
        return int(np.count_nonzero((self.positions + 1) % part.compressor.ratio == 0))


_COUNTS: dict[str, Callable[[StepWork, CompressedCache], Work]] = {
    "state_append": StepWork._state_append,
    "flush": StepWork._flush,
    "compress_chunk": StepWork._compress_chunk,
    "gather_topk": StepWork._gather_topk,
    "gather_all": StepWork._gather_all,
}
