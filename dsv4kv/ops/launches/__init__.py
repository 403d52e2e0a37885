"""Launch plans: grid and arguments of every kernel, made from tensors alone.

A plan knows no driver, so the GPU launcher and the CPU twin of the tests run the very same plans.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.model.formats import PageLayout

WARP = 32
_MULTIPROCESSORS, _SHARED_BYTES = 132, 228 << 10  # of an H200, and of each of them
_BLOCKS_EACH = 8  # of a grid that strides over its work
_RESERVED_BYTES = 1 << 10  # of a block's shared memory
MAX_ARGUMENTS = 32


@dataclass(frozen=True)
class KernelModule:
    """A CUDA source file with its compile-time parameters: what one compilation makes."""

    source: str  # file in ``kernels/``, without folder
    macros: tuple[tuple[str, int], ...]  # (name, value) of every ``-D``, sorted by name

    @classmethod
    def of(cls, source: str, macros: Mapping[str, int]) -> "KernelModule":
        """A source with its macros."""
        return cls(source, tuple(sorted(macros.items())))


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel."""

    module: KernelModule  # what to compile
    kernel: str  # name of the kernel in it
    grid: tuple[int, int]  # blocks (x, y)
    block: int  # threads of a block, a multiple of 32
    # pointers (tensors) and integers in the kernel's order; a float goes as the integer of its
    # float32 bits
    arguments: tuple[Tensor | int, ...]
    # may begin while the kernel before it in the stream still runs; every kernel waits for that
    # one before it touches memory. From sm_90 on
    dependent: bool = False
    # blocks along y that run together and see each other's shared memory, at most 8. More than 1
    # from sm_90 on
    cluster: int = 1
    shared_bytes: int = 0  # dynamic shared memory of a block


def multiprocessors(tensor: Tensor) -> int:
    """Of the GPU that holds a tensor; an H200's for a tensor that is on none."""
    if not tensor.is_cuda:
        return _MULTIPROCESSORS
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


def most_blocks(tensor: Tensor) -> int:
    """Of a grid whose blocks stride over their work, on the GPU that holds a tensor."""
    return _BLOCKS_EACH * multiprocessors(tensor)


def resident_blocks(tensor: Tensor, shared_bytes: int, most: int) -> int:
    """Blocks that the GPU of a tensor runs concurrently, ``most`` by registers on each SM."""
    held = _SHARED_BYTES
    if tensor.is_cuda:
        held = torch.cuda.get_device_properties(tensor.device).shared_memory_per_multiprocessor
    return max(1, min(most, held // (shared_bytes + _RESERVED_BYTES))) * multiprocessors(tensor)


LARGE, SMALL = 227 << 10, 99 << 10
"""Shared memory that a block may have: on sm_90 and sm_100, on all others at least."""


def most_shared(tensor: Tensor) -> int:
    """Bytes that a block may have of it; an H200's for a tensor that is on no GPU."""
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] not in (9, 10):
        return SMALL
    return LARGE


def blocks_for(items: int, per_block: int, most: int) -> int:
    """Blocks that cover ``items``, from 1 to ``most``: kernels stride over the rest."""
    return max(1, min(-(-items // per_block), most))


# Numbers that kernels/format.cuh gives a meaning.
_VALUES = {"bf16": 0, "e4m3": 1, "e2m1": 2}
_SCALES = {"none": 0, "ue8m0": 1, "e4m3": 2, "fp32": 3, "amax_fp32": 4}


def format_macros(layout: PageLayout) -> dict[str, int]:
    """Everything ``format.cuh`` needs to know of a layout."""
    entry = layout.format
    return {
        "DSV_DIMS": entry.dims,
        "DSV_VALUE": _VALUES[entry.value],
        "DSV_VALUE_DIMS": entry.value_dims,
        "DSV_GROUP": entry.group,
        "DSV_SCALE": _SCALES[entry.scale],
        "DSV_SCALE_PADDING": entry.scale_padding,
        "DSV_ENTRIES": layout.entries,
        "DSV_PAGE_BYTES": layout.page_bytes,
        "DSV_DATA_ROW": entry.data_row_bytes,
        "DSV_SCALE_BYTES": entry.scale_bytes,
        "DSV_SCALE_START": layout.scale_start,
        "DSV_SCALE_STRIDE": layout.scale_stride,
        "DSV_TAIL_START": entry.tail_start,
    }


def prefixed(part: str, macros: Mapping[str, int]) -> dict[str, int]:
    """Macros of one of several parts, see ``parts.cuh``: ``DSV_MAIN_DIMS``."""
    return {name.replace("DSV_", f"DSV_{part}_"): value for name, value in macros.items()}


def float_bits(value: float) -> int:
    """A float as kernels take it: the bits of its float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
