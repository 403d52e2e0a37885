"""Where a run's cache lives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsv4kv.bench.recorder import Event
from dsv4kv.bench.serve.graphs import Capture, cuda_capture
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.runs.schema import GpuFacts


@dataclass(frozen=True)
class CudaDevice:
    """A GPU, and what a run needs of it in addition to memory."""

    device: torch.device  # as torch names it
    architecture: str  # what its kernels are compiled for: ``sm_90a``
    free_bytes: int  # memory that is free
    l2_bytes: int  # its L2 cache
    make_event: Callable[[], Event]  # makes a moment on its clock
    make_capture: Callable[[], Capture]  # makes what captures graphs


def find_device(wanted: str) -> CudaDevice | None:
    """The device that ``auto``, ``cpu`` or ``cuda`` stands for here; None is the CPU.

    Raises:
        CudaUnavailable: A GPU is asked for and torch sees none.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return None
    if not torch.cuda.is_available():
        raise CudaUnavailable(
            "device is cuda and torch sees no CUDA device here: set device to cpu or auto, or "
            "install a torch built for CUDA on a machine with an NVIDIA GPU and driver."
        )
    device = torch.device("cuda", torch.cuda.current_device())
    return CudaDevice(
        device,
        architecture=architecture_of(*torch.cuda.get_device_capability(device)),
        free_bytes=torch.cuda.mem_get_info(device)[0],
        l2_bytes=torch.cuda.get_device_properties(device).L2_cache_size,
        make_event=_make_event,
        make_capture=cuda_capture,
    )


def describe_gpu(wanted: str) -> GpuFacts | None:
    """The GPU that ``auto``, ``cpu`` or ``cuda`` stands for here; None without."""
    if wanted == "cpu" or not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GpuFacts(
        name=facts.name,
        capability=f"{facts.major}.{facts.minor}",
        multiprocessors=facts.multi_processor_count,
        memory_bytes=facts.total_memory,
        l2_bytes=facts.L2_cache_size,
    )


def _make_event() -> Event:
    make: Any = torch.cuda.Event
    event: Event = make(enable_timing=True)
    return event
