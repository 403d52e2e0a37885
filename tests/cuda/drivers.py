"""A driver that launches nothing and notes what it is asked."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.cuda.launch import CudaDriver, Function, Packed, addresses_in
from dsv4kv.ops.launches.launch import Launch


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


@dataclass
class FakeDriver(CudaDriver):
    """Copies parameters as the driver does: so many bytes from the address of each.

    Attributes:
        parameter_bytes: Of every kernel.
        loads: (device, cubin) of every module loaded.
        lookups: Kernels looked up.
        launches: (kernel, grid, block, parameters) of every launch.
    """

    parameter_bytes: tuple[int, ...]
    loads: list[tuple[int, bytes]] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)
    launches: list[tuple[str, tuple[int, int], int, list[bytes]]] = field(default_factory=list)

    def architecture(self, device: int) -> str:
        return ("sm_90a", "sm_80")[device]

    def load(self, device: int, cubin: bytes) -> Any:
        self.loads.append((device, cubin))
        return cubin

    def function(self, device: int, loaded: Any, name: str) -> Function:
        self.lookups.append(name)
        return Function(name, self.parameter_bytes)

    def launcher(
        self, device: int, function: Function, launch: Launch, packed: Packed
    ) -> Callable[[], None]:
        def call() -> None:
            count = len(function.parameter_bytes)
            pointers = (ctypes.c_void_p * count).from_address(addresses_in(packed))
            copied = [
                ctypes.string_at(pointer, size)
                for pointer, size in zip(pointers, function.parameter_bytes, strict=True)
                if pointer
            ]
            self.launches.append((launch.kernel, launch.grid, launch.block, copied))

        return call
