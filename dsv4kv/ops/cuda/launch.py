"""Launch plans on the GPU: compiled, loaded, packed, launched; all that touches the driver.

``run`` does all of it; a timed loop calls the result of ``prepare``, which does nothing but
launch. Whatever is captured in a CUDA graph must have run once before: loading allocates.
``compile_ahead`` saves first launches from compiling one after the other.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.ops.cuda.compile import architecture_of, load_bindings, load_cubins
from dsv4kv.ops.launches import KernelModule, Launch

Packed = ctypes.Array[ctypes.c_int64]
"""n argument words, then the n addresses of these words."""

_WORD_BYTES = 8


def device_of(launch: Launch) -> int:
    """Index of the GPU that holds every tensor; refuses any that is elsewhere or has gaps."""
    tensors = [each for each in launch.arguments if isinstance(each, Tensor)]
    for each in tensors:
        if not (each.is_cuda and each.is_contiguous() and each.device == tensors[0].device):
            what = f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)} on {each.device}"
            raise DeviceError(
                f"{launch.kernel}: {what} is not on the GPU of the others, or has gaps: move it "
                "there, or call contiguous()."
            )
    return tensors[0].device.index or 0


def pack(launch: Launch) -> Packed:
    """A 64-bit word for every argument, and the word's address.

    The driver copies each parameter by the size that the kernel declares, from the address it is
    given. Every host with CUDA is little-endian, so the first four bytes of a word are the 32-bit
    value: one packing serves ``int``, ``unsigned``, float bits, 64-bit integers and pointers.
    """
    words = [each.data_ptr() if isinstance(each, Tensor) else each for each in launch.arguments]
    count = len(words)
    packed = (ctypes.c_int64 * (2 * count))(*words)
    start = ctypes.addressof(packed)
    packed[count:] = list(range(start, start + count * _WORD_BYTES, _WORD_BYTES))
    return packed


_DEPENDENT = ContextVar("dependent", default=False)
_FORESEEN: ContextVar[list[Launch] | None] = ContextVar("foreseen", default=None)


@contextmanager
def foresee() -> Iterator[list[Launch]]:
    """What would be launched inside: nothing is, and tensors may be without data."""
    launches: list[Launch] = []
    before = _FORESEEN.set(launches)
    try:
        yield launches
    finally:
        _FORESEEN.reset(before)


@contextmanager
def dependent_launches(on: bool) -> Iterator[None]:
    """Whether what ``run`` launches inside may begin before the kernel in front of it has ended.

    The same bytes, and less time between two kernels; the GPU is an sm_90 or newer.
    """
    before = _DEPENDENT.set(on)
    try:
        yield
    finally:
        _DEPENDENT.reset(before)


def run(launch: Launch) -> None:
    """Launch on torch's current stream, compiling and loading what is not there yet.

    Raises ``CudaUnavailable``, and ``DeviceError`` for what kernel or driver refuse.
    """
    prepare(replace(launch, dependent=True) if _DEPENDENT.get() else launch)()


def prepare(launch: Launch) -> Callable[[], None]:
    """Do everything but the launch; the returned call launches, again and again.

    The launch's tensors are kept alive as long as the call is. Raises as ``run`` does.
    """
    foreseen = _FORESEEN.get()
    if foreseen is not None:
        return functools.partial(foreseen.append, launch)
    return _launcher().prepare(launch)


def compile_ahead(modules: Iterable[KernelModule], device: torch.device) -> None:
    """Compile modules side by side and load them; any other does so at its first launch.

    ``foresee`` finds them. Raises as ``run`` does.
    """
    if _FORESEEN.get() is None:
        _launcher().load(modules, device.index or 0)


class OneStream:
    """Refuses a second stream: what graphs captured shares its scratch memory."""

    def __init__(self) -> None:
        self._first: int | None = None

    def check(self, device: torch.device) -> None:
        """Raise ``DeviceError`` on another stream than the first call's; nothing on a CPU."""
        if device.type != "cuda":
            return
        current = torch.cuda.current_stream(device).cuda_stream
        self._first = current if self._first is None else self._first
        if current != self._first:
            raise DeviceError(
                f"a decode step on stream {current:#x}, and earlier ones ran on {self._first:#x}: "
                "they share scratch memory, so run all steps of a cache on one stream."
            )


class Launcher:
    """Kernels through ``cuda.bindings`` in torch's contexts, each module loaded once a device."""

    def __init__(
        self, build: Callable[[Sequence[KernelModule], str], list[bytes]] = load_cubins
    ) -> None:
        """Compile with ``build(modules, architecture)``.

        Raises ``CudaUnavailable`` where there is no GPU that torch can use.
        """
        if not torch.cuda.is_available():
            raise CudaUnavailable(
                "no CUDA device: torch sees none here. Use the cpu backend, or install a torch "
                "built for CUDA on a machine with an NVIDIA GPU and driver."
            )
        self._cuda = load_bindings("driver")
        self._build = build
        self._loaded: dict[tuple[KernelModule, int], Any] = {}
        self._functions: dict[tuple[KernelModule, str, int], Any] = {}

    def load(self, modules: Iterable[KernelModule], device: int) -> None:
        """See ``compile_ahead``; what is loaded stays as it is."""
        absent = [each for each in dict.fromkeys(modules) if (each, device) not in self._loaded]
        cubins = self._build(absent, architecture_of(*torch.cuda.get_device_capability(device)))
        for module, cubin in zip(absent, cubins, strict=True):
            with torch.cuda.device(device):
                torch.cuda.synchronize()  # torch's context is current in this thread from here on
                loaded = self._checked("cuModuleLoadData", self._cuda.cuModuleLoadData(cubin))
            self._loaded[module, device] = loaded

    def prepare(self, launch: Launch) -> Callable[[], None]:
        """See ``prepare``: a call that launches on the then current stream."""
        device, packed = device_of(launch), pack(launch)
        addresses = ctypes.addressof(packed) + ctypes.sizeof(packed) // 2
        handle, config = self._function(launch, device), self._config(launch)
        start, guard = self._cuda.cuLaunchKernelEx, torch.cuda.device
        # What the inductor's generated code calls: the public way makes an object each time.
        stream_of = torch._C._cuda_getCurrentRawStream

        # The default keeps alive what the addresses and the arguments point to.
        def call(_alive: object = (packed, launch)) -> None:
            with guard(device):  # stream 0 is the default stream of the current device
                config.hStream = stream_of(device)
                status = start(config, handle, addresses, 0)
            if status[0]:
                self._checked(f"launching {launch.kernel}", status)

        return call

    def _config(self, launch: Launch) -> Any:
        """Of ``cuLaunchKernelEx``: it may begin earlier, or run by clusters."""
        config, ids = self._cuda.CUlaunchConfig(), self._cuda.CUlaunchAttributeID
        config.gridDimX, config.gridDimY, config.gridDimZ = *launch.grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        attributes = []
        if launch.dependent:  # in a captured graph an edge of it
            early = self._cuda.CUlaunchAttribute()
            early.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            attributes.append(early)
        if launch.cluster > 1:
            shape = self._cuda.CUlaunchAttribute()
            shape.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster = shape.value.clusterDim
            cluster.x, cluster.y, cluster.z = 1, launch.cluster, 1
            attributes.append(shape)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _function(self, launch: Launch, device: int) -> Any:
        """The driver's handle, with as much shared memory as the launch asks for."""
        key = launch.module, launch.kernel, device
        if key not in self._functions:
            self.load([launch.module], device)
            loaded = self._loaded[launch.module, device]
            found = self._cuda.cuModuleGetFunction(loaded, launch.kernel.encode())
            self._functions[key] = self._checked(f"cuModuleGetFunction({launch.kernel})", found)
        if size := launch.shared_bytes:  # more than 48 KiB only where that is said beforehand
            limit = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with torch.cuda.device(device):
                result = self._cuda.cuFuncSetAttribute(self._functions[key], limit, size)
            self._checked(f"giving {launch.kernel} {size} B of shared memory", result)
        return self._functions[key]

    def _checked(self, call: str, result: tuple[Any, ...]) -> Any:
        status = result[0]
        if not status:
            return result[1] if len(result) > 1 else None
        text = self._cuda.cuGetErrorString(status)[1] or b"unknown error"
        advice = ""
        if "IMAGE" in status.name or "BINARY" in status.name or "PTX" in status.name:
            advice = " (the driver is older than NVRTC: update the driver)"
        raise DeviceError(f"{call} failed with {status.name}: {text.decode()}{advice}.")


@functools.cache
def _launcher() -> Launcher:
    return Launcher()
