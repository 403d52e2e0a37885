"""Example launches: what a kernel works on, by name, on tensors without data.

The launch plans themselves make them, so what is compiled and looked at is what a run launches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.model.formats import FLAT_FORMATS, PageLayout
from dsv4kv.ops.kernels.launch import Launch
from dsv4kv.ops.storage import PageStore

# Sizes of the tensors, which are arguments and compiled into nothing but prepare's kernels.
PAGES, REQUESTS, CHOICES, WIDTH = 2, 4, 512, 8


@dataclass(frozen=True)
class Example:
    """A launch of one kernel and what it works on: ``fp8_ds_mla × 32``, ``csa-4 ring``.

    Where the operation has variants, the subject ends with the one that this is.

    Attributes:
        subject: Formats, sizes and variant.
        launch: What is launched.
        architectures: That it is for; None for all.
    """

    subject: str
    launch: Launch
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what the kernel takes."""
        return self.architectures is None or architecture in self.architectures


@dataclass(frozen=True)
class Promise:
    """How a kernel accesses global memory; widths are bits of one thread's access.

    Attributes:
        loads: At least one load is this wide: the values. Indices and tables may be narrower.
        stores: No store is narrower than this.
        under_way: So many wide loads are issued before the first of them is waited for.
        copies: There are bulk copies into shared memory.
        products: Tensor cores multiply.
    """

    loads: int = 0
    stores: int = 0
    under_way: int = 0
    copies: bool = False
    products: bool = False


def title(layout: PageLayout) -> str:
    """Its format and the entries of a page."""
    flat = "flat-" if layout.format in FLAT_FORMATS.values() else ""  # V3.2's have V4's names
    return f"{flat}{layout.format.name} × {layout.entries}"


def pages_of(layout: PageLayout) -> PageStore:
    """A few pages."""
    return PageStore.allocate(layout, PAGES, torch.device("meta"))


def values_for(store: PageStore, *shape: int) -> Tensor:
    """bf16[*shape, D]: entries as they go in or come out."""
    return empty(torch.bfloat16, *shape, store.layout.format.dims)


def numbers(count: int) -> Tensor:
    """int64[count]: slots, positions, lengths or entries."""
    return empty(torch.int64, count)


def empty(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")
