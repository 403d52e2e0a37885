"""Launches through ``cuda.bindings`` and the driver library that test_launch.py builds.

For a process of its own: what of torch needs a GPU is replaced, and only there.
"""

import contextlib
import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import DeviceError
from dsv4kv.ops.cuda.launch import Launcher
from dsv4kv.ops.launches import KernelModule, Launch

_STREAM = 0x77


class GpuTensor(Tensor):
    """A CPU tensor that says it is on GPU 0."""

    is_cuda = True
    device = torch.device("cuda", 0)
    # as fast as any tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class OtherGpuTensor(GpuTensor):
    """And one on GPU 1."""

    device = torch.device("cuda", 1)


def on_gpu(tensor: Tensor, kind: type[GpuTensor] = GpuTensor) -> Tensor:
    """The same memory, said to be on a GPU."""
    found: Tensor = tensor.as_subclass(kind)
    return found


def main(library: str) -> None:
    """Launch a kernel in every way, one that there is not, and one whose image is none."""
    pretend_a_gpu(library, torch.cuda, torch._C)
    fill("fill", b"\x7fELF")
    fill("fill", b"\x7fELF", dependent=True)
    fill("fill", b"\x7fELF", cluster=2, shared_bytes=75_000)
    fill("fill", b"\x7fELF", dependent=True, cluster=2, shared_bytes=1 << 20)
    fill("nosuch", b"\x7fELF")
    fill("fill", b"PTX!")


def load_often(library: str) -> None:
    """Print what is built for two modules on two GPUs, ahead and at first launches."""
    pretend_a_gpu(library, torch.cuda, torch._C)

    def build(modules: Sequence[KernelModule], architecture: str) -> list[bytes]:
        if modules:
            print(architecture, *(module.source for module in modules), flush=True)
        return [b"\x7fELF"] * len(modules)

    launcher, fills, other = Launcher(build), KernelModule("fill", ()), KernelModule("other", ())
    for tensor in (torch.zeros(1), torch.ones(1)):
        launcher.prepare(Launch(fills, "fill", (1, 1), 32, (on_gpu(tensor), 1, 1, 0)))
    launcher.load([fills, other, KernelModule("last", ()), other], 0)
    for kind in (GpuTensor, OtherGpuTensor):
        target = on_gpu(torch.zeros(1), kind)
        launcher.prepare(Launch(other, "fill", (1, 1), 32, (target, 1, 1, 0)))


def pretend_a_gpu(library: str, cuda: Any, internals: Any) -> None:
    ctypes.CDLL(library)  # whoever asks for the driver by its name finds this one
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda device: ((9, 0), (8, 0))[device]
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
        call = Launcher(lambda *_: [image]).prepare(launch)
        call()
        call()
        print(numbers.tolist(), flush=True)
    except DeviceError as error:
        print(error, flush=True)
