"""Runs a step's operations on real bytes, layer by layer, as a decoder would."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.handle import CompressedCache, LayerCache, LayerCacheHandle
from dsv4kv.cache.step import StepBatch
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.schedule import AttentionType
from dsv4kv.ops import traffic
from dsv4kv.workload.inputs import InputBank


@dataclass(frozen=True)
class StepTokens:
    """Tokens of a step.

    Attributes:
        batch: The tokens as the cache sees them.
        requests: Running number of every request of the batch, int64[B].
        kept: Tokens of every request once rejected drafts are rolled back, int64[B].
        observed: Show what is gathered to the observer.
    """

    batch: StepBatch
    requests: Ids
    kept: Ids
    observed: bool = False

    def rows(self, members: Ids | int, positions: Ids) -> Ids:
        """Input rows of tokens, by request (0 … B − 1) and position, as this step sees them."""
        return InputBank.rows(self.requests[members], positions, positions >= self.kept[members])


class StepObserver(Protocol):
    """Looks at what a layer's gathers returned."""

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """``out`` bf16[B, W, D] holds the windows of the batch."""

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """``out`` bf16[B, K, ·] holds the entries ``indices`` int[B, K]; −1 was not asked for."""


class Workspace:
    """Output buffers that grow to the largest size asked for and never shrink."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A bf16 tensor of this shape over the buffer ``name``; its content is left over."""
        size = int(np.prod(shape))
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = torch.empty(size, dtype=torch.bfloat16)
        return self._buffers[name][:size].view(shape)


class StepExecutor:
    """Drives every layer's cache through a step and times each operation."""

    def __init__(
        self,
        layers: Sequence[LayerCache],
        inputs: InputBank,
        recorder: Recorder,
        observer: StepObserver,
        *,
        index_topk: int,
        window_tokens: int,
        seed: int,
    ) -> None:
        """Prepare to run ``layers`` with data from ``inputs``."""
        self._layers = layers
        self._inputs = inputs
        self._recorder = recorder
        self._observer = observer
        self._index_topk = index_topk
        self._window_tokens = window_tokens
        self._random = np.random.default_rng(seed)
        self._scatter = self._random.permutation(index_topk)
        self._workspace = Workspace()

    def decode(self, step: StepTokens) -> None:
        """One token of every request, or one and its drafts: insert, flush, gather."""
        batch = step.batch
        with self._recorder.excluded():
            rows = torch.from_numpy(step.rows(batch.request_ids.numpy(), batch.positions.numpy()))
        for layer in self._layers:
            handle = LayerCacheHandle(layer, step.batch)
            self._write_window(handle, step, rows)
            for indexer in self._parts(layer):
                self._append_and_flush(handle, step, rows, indexer)
            self._read(handle, step)

    def prefill(self, step: StepTokens) -> None:
        """One prompt chunk of one request: insert and compress, then read what is visible."""
        with self._recorder.excluded():
            first = int(step.rows(0, step.batch.positions[:1].numpy())[0])
            rows = slice(first, first + step.batch.num_tokens)  # a view, not a copy
        for layer in self._layers:
            handle = LayerCacheHandle(layer, step.batch)
            self._write_window(handle, step, rows)
            for indexer in self._parts(layer):
                self._compress_chunk(handle, step, rows, indexer)
                self._gather_all(handle, step, indexer)

    @staticmethod
    def _parts(layer: LayerCache) -> list[bool]:
        """Compressed KV (False) and indexer keys (True), as far as the layer has them."""
        return [i for i, part in ((False, layer.main), (True, layer.indexer)) if part is not None]

    def _write_window(
        self, handle: LayerCacheHandle, step: StepTokens, rows: Tensor | slice
    ) -> None:
        with self._recorder.excluded():
            values = self._inputs.window[rows]
        ring = handle.layer.window.layout
        stored = min(step.batch.num_tokens, step.batch.num_requests * ring.entries)
        moved = traffic.insert_bytes(ring.format, stored)
        with self._time("window_insert", handle, stored, moved):
            handle.write_swa(values)

    def _append_and_flush(
        self, handle: LayerCacheHandle, step: StepTokens, rows: Tensor, indexer: bool
    ) -> None:
        part = handle.part(indexer)
        with self._recorder.excluded():
            inputs = self._inputs.compressors[part.compressor.channels]
            kv, score = inputs.kv[rows], inputs.score[rows]
            flushed = len(handle.completed())
        online = part.state.dim() == 3
        tokens, entry = step.batch.num_tokens, part.store.layout.format
        moved = traffic.state_append_bytes(part.compressor, tokens, online=online)
        with self._time(_name("state_append", indexer), handle, tokens, moved):
            handle.append_state(kv, score, indexer=indexer)
        moved = traffic.flush_bytes(part.compressor, entry, flushed, online=online)
        with self._time(_name("flush", indexer), handle, flushed, moved):
            handle.flush(indexer=indexer)

    def _compress_chunk(
        self, handle: LayerCacheHandle, step: StepTokens, rows: slice, indexer: bool
    ) -> None:
        part = handle.part(indexer)
        inputs = self._inputs.compressors[part.compressor.channels]
        tokens = step.batch.num_tokens
        moved = traffic.compress_chunk_bytes(
            part.compressor,
            part.store.layout.format,
            tokens,
            len(handle.completed()),
            part.state.shape[2] if part.state.dim() == 4 else 3,
        )
        with self._time(_name("compress_chunk", indexer), handle, tokens, moved):
            handle.compress_chunk(inputs.kv[rows], inputs.score[rows], indexer=indexer)

    def _read(self, handle: LayerCacheHandle, step: StepTokens) -> None:
        """What the attention of a decode step reads."""
        layer = handle.layer
        if layer.indexer is not None:
            self._gather_all(handle, step, indexer=True)
        if layer.schema.layer.attn is AttentionType.HCA and layer.main is not None:
            self._gather_all(handle, step, indexer=False)
        elif layer.main is not None:
            self._gather_topk(handle, step)
        self._gather_window(handle, step)

    def _gather_topk(self, handle: LayerCacheHandle, step: StepTokens) -> None:
        part, batch = handle.part(indexer=False), step.batch
        with self._recorder.excluded():
            lengths = _count_entries(step, part)
            topk = self._choose(lengths.numpy())
            out = self._workspace.take("topk", *topk.shape, part.compressor.dim)
            found = int(lengths.clamp(max=self._index_topk).sum())
        asked = batch.num_requests * self._index_topk
        moved = traffic.gather_topk_bytes(part.store.layout.format, found, asked)
        with self._time("gather_topk", handle, found, moved):
            handle.gather_compressed_kv(topk, out)
        if step.observed:
            with self._recorder.excluded():
                self._observer.entries_gathered(handle.layer, step, topk, out, False)

    def _gather_all(self, handle: LayerCacheHandle, step: StepTokens, indexer: bool) -> None:
        part = handle.part(indexer)
        with self._recorder.excluded():
            lengths = _count_entries(step, part)
            found, longest = int(lengths.sum()), int(lengths.max())
            blocks = int((-(-lengths // part.store.layout.entries)).sum())
            shape = (step.batch.num_requests, longest, part.compressor.dim)
            out = self._workspace.take("indexer" if indexer else "all", *shape)
        moved = traffic.gather_all_bytes(part.store.layout.format, found, blocks)
        with self._time(_name("gather_all", indexer), handle, found, moved):
            if longest:
                handle.gather_all_compressed_kv(out, indexer=indexer)
        if step.observed and longest:
            with self._recorder.excluded():
                entries = torch.arange(longest).expand(len(lengths), -1)
                indices = entries.masked_fill(entries >= lengths[:, None], -1)
                self._observer.entries_gathered(handle.layer, step, indices, out, indexer)

    def _gather_window(self, handle: LayerCacheHandle, step: StepTokens) -> None:
        batch, layout = step.batch, handle.layer.window.layout
        with self._recorder.excluded():
            shape = (batch.num_requests, self._window_tokens, layout.format.dims)
            out = self._workspace.take("window", *shape)
            found = int(batch.tokens_after.clamp(max=self._window_tokens).sum())
        moved = traffic.gather_window_bytes(layout.format, found, batch.num_requests)
        with self._time("gather_window", handle, found, moved):
            handle.gather_swa_kv(out)
        if step.observed:
            with self._recorder.excluded():
                self._observer.window_gathered(handle.layer, step, out)

    def _choose(self, lengths: Ids) -> Tensor:
        """Scattered, distinct entries of each request, int32[B, K], −1 where there are too few.

        Stands for the indexer's choice, which depends on queries that a cache does not see.
        """
        topk, visible = self._index_topk, lengths[:, None]
        jitter = self._random.random((len(lengths), 1))
        spread = ((self._scatter + jitter) * visible / topk).astype(np.int32)
        in_order = np.where(np.arange(topk) < visible, np.arange(topk), -1)
        return torch.from_numpy(np.where(visible > topk, spread, in_order).astype(np.int32))

    def _time(
        self, name: str, handle: LayerCacheHandle, entries: int, moved_bytes: int
    ) -> AbstractContextManager[None]:
        attn = handle.layer.schema.layer.attn.value
        return self._recorder.timed(name, attn, entries, moved_bytes)


def _count_entries(step: StepTokens, part: CompressedCache) -> Tensor:
    """Complete entries of every request, int64[B]; not asked of the cache, which is checked."""
    return step.batch.tokens_after // part.compressor.ratio


def _name(operation: str, indexer: bool) -> str:
    return f"indexer_{operation}" if indexer else operation
