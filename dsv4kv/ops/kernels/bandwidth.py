"""Launch plans of plain copying, reading and writing: the limits that gathers are compared with.

And of nothing at all, the limit of everything small.

Sizes are whole 16-byte chunks; a rest is left out.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.ops.kernels.example import Example, Promise, empty
from dsv4kv.ops.kernels.launch import MOST_BLOCKS, KernelModule, Launch, blocks_for

THREADS = 256

_MODULE = KernelModule("bandwidth.cuh", ())
_CHUNK_BYTES = 16
_CHUNKS_IN_FLIGHT = 8

PROMISES = {
    "copy_peak *": Promise(loads=128, stores=128, under_way=8),
    "read_peak *": Promise(loads=128),
    "write_peak *": Promise(stores=128),
}
"""See ``catalogue.PROMISES``."""


def plan_copy_peak(source: Tensor, target: Tensor) -> Launch:
    """Copy all of ``source`` to ``target``, which is as long and does not overlap it."""
    return _plan("copy_peak", (source, target), _chunks(source), _CHUNKS_IN_FLIGHT)


def plan_write_peak(target: Tensor) -> Launch:
    """Fill ``target``: every 32-bit word is the number of its chunk."""
    return _plan("write_peak", (target,), _chunks(target), 1)


def plan_read_peak(source: Tensor, sums: Tensor) -> Launch:
    """Read all of ``source``.

    sums: int32[n · THREADS] for n blocks, each thread's sum of the 32-bit words it has read.
    """
    blocks = len(sums) // THREADS
    arguments = (source, sums, _chunks(source))
    return Launch(_MODULE, "read_peak", (blocks, 1), THREADS, arguments)


def plan_nothing(place: Tensor) -> Launch:
    """One block that does nothing, on the GPU that ``place`` is on."""
    return Launch(_MODULE, "do_nothing", (1, 1), THREADS, (place,))


def _plan(kernel: str, tensors: tuple[Tensor, ...], chunks: int, in_flight: int) -> Launch:
    blocks = blocks_for(chunks, THREADS * in_flight, MOST_BLOCKS)
    return Launch(_MODULE, kernel, (blocks, 1), THREADS, (*tensors, chunks))


def _chunks(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() // _CHUNK_BYTES


def examples() -> Iterator[Example]:
    """Peaks of memory traffic, and a launch of nothing."""
    memory, sums = empty(torch.uint8, 4096), empty(torch.int32, THREADS)
    for launch in (
        plan_copy_peak(memory, memory),
        plan_read_peak(memory, sums),
        plan_write_peak(memory),
        plan_nothing(memory),
    ):
        yield Example("16-byte chunks", launch)
