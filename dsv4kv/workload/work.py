"""How much work a step's operations are: entries and useful bytes, counted on the host.

Nothing is asked of the cache, which is being checked.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.handle import CompressedCache, LayerCache
from dsv4kv.ops import traffic
from dsv4kv.workload.operations import Call

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
