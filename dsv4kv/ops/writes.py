"""What a step writes to a layer besides its window."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.storage import PageStore


@dataclass(frozen=True)
class PartWrite:
    """A step's tokens for one compressor: of the compressed KV, or of the indexer keys.

    Attributes:
        compressor: Parameters.
        state: float32[S, 2, R, C], or float32[S, 3, C] online; see ``contract.state_append``.
        kv: float32[T, C].
        score: float32[T, C].
        store: Pages of the entries.
        entries: Physical entry that each token completes, int64[T], −1 where it completes none.
    """

    compressor: Compressor
    state: Tensor
    kv: Tensor
    score: Tensor
    store: PageStore
    entries: Tensor

    def fields(self) -> tuple[Any, ...]:
        """Its attributes in order."""
        return tuple(getattr(self, each.name) for each in fields(self))


Parts = tuple[PartWrite, ...]
"""Compressed KV, then indexer keys if the layer has them."""


def write_in_turn(
    window_insert: Callable[..., None],
    state_append: Callable[..., None],
    flush: Callable[..., None],
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
) -> None:
    """``contract.Backend.step_write`` by operations of its own; does not wait for a GPU."""
    window_insert(ring, values, slots, positions)
    for part in parts:
        state_append(part.compressor, part.state, part.kv, part.score, slots, positions)
        flush(part.compressor, part.state, slots, positions, part.store, part.entries)
