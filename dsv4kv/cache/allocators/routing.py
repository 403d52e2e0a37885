"""Which experts a mixture-of-experts model chose for the tokens of every block."""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.errors import ConfigError

Routing = NDArray[np.int16]


class RoutingStore:
    """Routing indices by block: kept while the block's content is, dropped with it."""

    def __init__(self, block_tokens: int, num_layers: int, top_k: int) -> None:
        """Indices are int16[tokens, num_layers, top_k]; a block has ``block_tokens`` tokens."""
        self.block_tokens = block_tokens
        self._shape = (num_layers, top_k)
        self._blocks: dict[int, tuple[Routing, NDArray[np.bool_]]] = {}

    def store_per_block(self, ids: Ids, flat: Routing) -> None:
        """Store indices of consecutive tokens, int16[T, L, k], the first in ``ids[0]``."""
        size = self.block_tokens
        if -(-len(flat) // size) > len(ids):
            raise ConfigError(f"{len(flat)} tokens do not fit into {len(ids)} blocks of {size}.")
        for number, start in enumerate(range(0, len(flat), size)):
            part = flat[start : start + size]
            self.store_block(int(ids[number]), np.arange(len(part)), part)

    def store_block(self, block: int, positions: Ids, routing: Routing) -> None:
        """Store the indices of some tokens of a block, int16[n, L, k], at ``positions``."""
        routing = np.asarray(routing)
        wanted = (len(positions), *self._shape)
        if routing.shape != wanted:
            raise ConfigError(f"routing must have shape {wanted}, not {routing.shape}.")
        if any(not 0 <= position < self.block_tokens for position in positions):
            raise ConfigError(f"positions in a block are 0..{self.block_tokens - 1}.")
        if block not in self._blocks:
            indices = np.zeros((self.block_tokens, *self._shape), dtype=np.int16)
            self._blocks[block] = indices, np.zeros(self.block_tokens, dtype=np.bool_)
        indices, known = self._blocks[block]
        indices[positions], known[positions] = routing, True

    def get_block(self, block: int) -> Routing | None:
        """Copy of the indices of a block's tokens up to the first unknown; None without any."""
        if block not in self._blocks:
            return None
        indices, known = self._blocks[block]
        count = len(known) if known.all() else int(known.argmin())
        return indices[:count].copy() if count else None

    def reconstruct(self, ids: Ids, total: int) -> Routing | None:
        """Indices of the first ``total`` tokens of a chain of blocks; None if one misses."""
        needed = -(-total // self.block_tokens)
        if needed > len(ids):
            return None
        parts = [np.zeros((0, *self._shape), dtype=np.int16)]
        for number, block in enumerate(ids[:needed].tolist()):
            part = self.get_block(block)
            wanted = min(self.block_tokens, total - number * self.block_tokens)
            if part is None or len(part) < wanted:
                return None
            parts.append(part[:wanted])
        return np.concatenate(parts)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks = {}

    def drop(self, ids: Ids) -> None:
        """Forget blocks."""
        if self._blocks:
            for block in ids.tolist():
                self._blocks.pop(block, None)
