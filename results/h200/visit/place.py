"""Where a step works: on the GPU, or on the kernels' CPU twin at small sizes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dsv4kv.bench.device import CudaDevice, describe_gpu, find_device
from dsv4kv.runs.schema import GpuFacts

TWIN = GpuFacts(name="CPU twin", capability="", multiprocessors=1, memory_bytes=0, l2_bytes=1)


@dataclass(frozen=True)
class Place:
    """A device and what is known of it."""

    device: CudaDevice
    facts: GpuFacts
    small: bool

    def size(self, full: int, small: int) -> int:
        """How much work there is."""
        return small if self.small else full


def planned_place() -> Place:
    """A place on no GPU, where works are planned and nothing is launched."""
    device = CudaDevice(torch.device("meta"), "sm_90a", 0, 1, _none, _none)
    return Place(device, TWIN, small=False)


def _none() -> Any:
    raise AssertionError("nothing is launched on no GPU")


@contextmanager
def open_place(*, small: bool) -> Iterator[Place]:
    """The GPU; with ``small`` its twin.

    Raises:
        CudaUnavailable: There is no GPU.
    """
    if small:
        from tests.gpu_twin import twin_device, twin_gpu

        with twin_gpu() as gpu:
            yield Place(twin_device(gpu), TWIN, small)
        return
    device, facts = find_device("cuda"), describe_gpu("cuda")
    assert device is not None
    assert facts is not None
    yield Place(device, facts, small)
