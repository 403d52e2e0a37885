"""What whole pages cost: bytes of held blocks that hold no complete entry."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.manager import KVCacheManager


class PageRounding:
    """Compares what requests hold with what they use, for one cache."""

    def __init__(self, manager: KVCacheManager) -> None:
        """Add up the sizes of the layers behind every table."""
        self._manager = manager
        self._block_bytes: list[int] = []
        self._entry_bytes: Counter[int] = Counter()  # of all layers, by compress ratio
        for table in manager.tables:
            schemas = [s for s in manager.plan.schemas if s.layer.layer_idx in table.group.layers]
            self._block_bytes.append(sum(schema.block_bytes for schema in schemas))
            for schema in schemas:
                ratio = schema.layer.ratio
                self._entry_bytes[ratio] += int(schema.bytes_per_token * ratio)

    def unused_bytes(self, slots: NDArray[np.int64]) -> int:
        """Bytes of the held pages beyond the entries of the requests in ``slots``."""
        tokens = self._manager.tokens[slots]
        held = sum(
            table.allocator.num_held * size
            for table, size in zip(self._manager.tables, self._block_bytes, strict=True)
        )
        used = sum(
            int((tokens // ratio).sum()) * size for ratio, size in self._entry_bytes.items()
        )
        return held - used
