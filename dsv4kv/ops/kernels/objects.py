"""Launch plans that move objects of tiers: all layers of a family at once, 16 bytes at a time.

An object is what a family has of one page or slot: the layers' pieces, one after another.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from dsv4kv.ops.kernels.example import Example, Promise, empty
from dsv4kv.ops.kernels.launch import MOST_BLOCKS, KernelModule, Launch, blocks_for

CHUNK_BYTES = 16
"""Pieces and strides are multiples of it."""
Way = Literal["take", "put"]

_MODULE = KernelModule("objects.cuh", ())
_THREADS = 256
_CHUNKS_EACH = 4  # of a thread
_MOST_BLOCKS_OF_A_PIECE = 8

PROMISES = {
    "*_objects *": Promise(loads=128, stores=128),
}
"""See ``catalogue.PROMISES``."""


def pool_table(pools: Sequence[Tensor]) -> Tensor:
    """Where layers' pools are, for ``plan_objects``: int64[2, layers], addresses and pieces."""
    rows = [[pool.data_ptr() for pool in pools], [len(pool) for pool in pools]]
    return torch.tensor(rows, dtype=torch.int64, device=pools[0].device)


def plan_objects(
    way: Way, table: Tensor, ids: Tensor, objects: Tensor, piece_bytes: int, stride: int
) -> Launch:
    """Gather objects from the pools of a ``pool_table``, or put them back.

    Args:
        way: ``take`` reads the pools, ``put`` writes them.
        table: int64[2, layers]; who calls keeps the pools alive.
        ids: int64[layers, n], the page or slot of every object; one that is not there is skipped.
        objects: uint8, n objects ``stride`` bytes apart.
        piece_bytes: Of one layer.
        stride: From an object to the next.
    """
    layers, count = ids.shape
    across = blocks_for(
        piece_bytes // CHUNK_BYTES, _THREADS * _CHUNKS_EACH, _MOST_BLOCKS_OF_A_PIECE
    )
    grid = across, blocks_for(layers * count, 1, MOST_BLOCKS)
    sizes = (count, layers, piece_bytes, stride)
    return Launch(_MODULE, f"{way}_objects", grid, _THREADS, (objects, table, ids, *sizes))


def examples() -> Iterator[Example]:
    """Both ways."""
    numbers, memory = empty(torch.int64, 2, 2), empty(torch.uint8, 4096)
    for way in ("take", "put"):
        launch = plan_objects(way, numbers, numbers, memory, 1024, 2048)
        yield Example("16-byte chunks", launch)
