"""Launch plans that move bytes as they are: peaks that gathers are compared with, tiers' objects.

Sizes of peaks are whole 16-byte chunks; a rest is dropped. An object of a tier is what a family
has of one page or slot: the layers' pieces, one after another.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from dsv4kv.ops.launches.launch import KernelModule, Launch, blocks_for, most_blocks

THREADS = 256
CHUNK_BYTES = 16
"""Pieces and strides of objects are multiples of it."""
Way = Literal["take", "put"]

_PEAKS, _OBJECTS = KernelModule("bandwidth.cuh", ()), KernelModule("objects.cuh", ())
_CHUNKS_IN_FLIGHT = 8
_CHUNKS_EACH = 4  # of a thread
_MOST_BLOCKS_OF_A_PIECE = 8


def plan_copy_peak(source: Tensor, target: Tensor) -> Launch:
    """Copy all of ``source`` to ``target``, which is as long and does not overlap it."""
    return _plan("copy_peak", (source, target), _CHUNKS_IN_FLIGHT)


def plan_write_peak(target: Tensor) -> Launch:
    """Fill ``target``: every 32-bit word is the number of its chunk."""
    return _plan("write_peak", (target,), 1)


def plan_read_peak(source: Tensor, sums: Tensor) -> Launch:
    """Read all of ``source``.

    sums: int32[n · THREADS] for n blocks, each thread's sum of the 32-bit words it has read.
    """
    grid = len(sums) // THREADS, 1
    return Launch(_PEAKS, "read_peak", grid, THREADS, (source, sums, _chunks(source)))


def plan_nothing(place: Tensor) -> Launch:
    """One block that does nothing, on the GPU that ``place`` is on."""
    return Launch(_PEAKS, "do_nothing", (1, 1), THREADS, (place,))


def _plan(kernel: str, tensors: tuple[Tensor, ...], in_flight: int) -> Launch:
    chunks = _chunks(tensors[0])
    grid = blocks_for(chunks, THREADS * in_flight, most_blocks(tensors[0])), 1
    return Launch(_PEAKS, kernel, grid, THREADS, (*tensors, chunks))


def _chunks(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() // CHUNK_BYTES


def pool_table(pools: Sequence[Tensor]) -> Tensor:
    """Where layers' pools are, for ``plan_objects``: int64[2, layers], addresses and pieces."""
    rows = [[pool.data_ptr() for pool in pools], [len(pool) for pool in pools]]
    return torch.tensor(rows, dtype=torch.int64, device=pools[0].device)


def plan_objects(
    way: Way, table: Tensor, ids: Tensor, objects: Tensor, piece_bytes: int, stride: int
) -> Launch:
    """Gather objects from the pools of a ``pool_table`` (``take``), or put them back.

    ids: int64[layers, n], the page or slot of every object; one that does not exist is skipped.
    objects: uint8, n objects ``stride`` bytes apart, a piece of ``piece_bytes`` of each layer.
    The caller keeps the pools alive.
    """
    layers, count = ids.shape
    chunks = piece_bytes // CHUNK_BYTES
    across = blocks_for(chunks, THREADS * _CHUNKS_EACH, _MOST_BLOCKS_OF_A_PIECE)
    grid = across, blocks_for(layers * count, 1, most_blocks(objects))
    sizes = (count, layers, piece_bytes, stride)
    return Launch(_OBJECTS, f"{way}_objects", grid, THREADS, (objects, table, ids, *sizes))
