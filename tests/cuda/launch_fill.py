"""Launches through ``cuda.bindings`` and the driver library that test_bindings.py builds.

For a process of its own: what of torch needs a GPU is replaced, and only there.
"""

import contextlib
import ctypes
import struct
from typing import Any

import torch

from dsv4kv.errors import DeviceError
from dsv4kv.ops.cuda.launch import CudaDriver, Launcher
from dsv4kv.ops.launches.launch import KernelModule, Launch
from tests.cuda.drivers import on_gpu

_STREAM = 0x77


def main(library: str) -> None:
    """Launch a kernel in every way, one that there is not, and one whose image is none."""
    ctypes.CDLL(library)  # whoever asks for the driver by its name finds this one
    pretend_a_gpu(torch.cuda, torch._C)
    fill("fill", b"\x7fELF")
    fill("fill", b"\x7fELF", dependent=True)
    fill("fill", b"\x7fELF", cluster=2, shared_bytes=75_000)
    fill("fill", b"\x7fELF", dependent=True, cluster=2, shared_bytes=1 << 20)
    fill("nosuch", b"\x7fELF")
    fill("fill", b"PTX!")


def pretend_a_gpu(cuda: Any, internals: Any) -> None:
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.device = lambda _: contextlib.nullcontext()
    cuda.synchronize = lambda *_: None
    internals._cuda_getCurrentRawStream = lambda _: _STREAM


def fill(kernel: str, image: bytes, **how: Any) -> None:
    """Fill three of four numbers with −5, twice; print them, or what went wrong."""
    numbers = torch.zeros(4, dtype=torch.int32)
    (scale,) = struct.unpack("<I", struct.pack("<f", 1.5))
    arguments = (on_gpu(numbers), -5, 3, scale)
    launch = Launch(KernelModule("fill.cuh", ()), kernel, (7, 2), 256, arguments, **how)
    try:
        call = Launcher(CudaDriver(), lambda *_: [image]).prepare(launch)
        call()
        call()
        print(numbers.tolist(), flush=True)
    except DeviceError as error:
        print(error, flush=True)
