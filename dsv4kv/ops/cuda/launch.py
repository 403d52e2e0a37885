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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.ops.cuda.compile import architecture_of, load_bindings, load_cubins
from dsv4kv.ops.launches.launch import KernelModule, Launch

Packed = ctypes.Array[ctypes.c_int64]
"""n argument words, then the n addresses of these words."""

_WORD_BYTES = 8


def device_of(launch: Launch) -> int:
    """Index of the GPU that holds every tensor; refuses any that is elsewhere or has gaps."""
    device = None
    for i, argument in enumerate(launch.arguments):
        if not isinstance(argument, Tensor):
            continue
        if not argument.is_cuda:
            raise _refusal(launch, i, f"is on {argument.device}: move it to the GPU")
        if not argument.is_contiguous():
            raise _refusal(launch, i, "has gaps between its elements: call contiguous()")
        if device not in {None, argument.device}:
            raise _refusal(launch, i, f"is on {argument.device}, others are on {device}")
        device = argument.device
    if device is None:
        raise DeviceError(f"{launch.kernel} names no tensor, so no GPU: pass it a tensor.")
    return device.index or 0


def pack(launch: Launch, parameter_bytes: tuple[int, ...]) -> Packed:
    """A 64-bit word for every argument, and the word's address.

    The driver copies each parameter by the size that the kernel declares, from the address it is
    given. Every host with CUDA is little-endian, so the first four bytes of a word are the 32-bit
    value: one packing serves ``int``, ``unsigned``, float bits, 64-bit integers and pointers.
    """
    count = len(parameter_bytes)
    if len(launch.arguments) != count:
        raise DeviceError(
            f"{launch.kernel} in {launch.module.source} takes {count} arguments, the plan passes "
            f"{len(launch.arguments)}: plan and source must agree."
        )
    words = [_word(launch, i, size) for i, size in enumerate(parameter_bytes)]
    packed = (ctypes.c_int64 * (2 * count))(*words)
    start = ctypes.addressof(packed)
    packed[count:] = list(range(start, start + count * _WORD_BYTES, _WORD_BYTES))
    return packed


def addresses_in(packed: Packed) -> int:
    """Where the addresses begin: what ``cuLaunchKernel`` calls ``kernelParams``."""
    return ctypes.addressof(packed) + ctypes.sizeof(packed) // 2


def _word(launch: Launch, index: int, size: int) -> int:
    argument = launch.arguments[index]
    if isinstance(argument, Tensor):
        if size != _WORD_BYTES:
            raise _refusal(launch, index, f"is a tensor where the kernel takes {size} bytes")
        return argument.data_ptr()
    # 32 bits are signed or not; only the kernel knows.
    most = 2**32 if size == 4 else 2**63
    if not -(2 ** (8 * size - 1)) <= argument < most:
        raise _refusal(launch, index, f"does not fit into {size} bytes")
    return argument


def _refusal(launch: Launch, index: int, problem: str) -> DeviceError:
    argument = launch.arguments[index]
    what = str(argument)
    if isinstance(argument, Tensor):
        what = f"{str(argument.dtype).removeprefix('torch.')}{list(argument.shape)}"
    return DeviceError(f"{launch.kernel}: argument {index} ({what}) {problem}.")


_StreamCall = Callable[[Any, int, int], Any]
"""Launches a function on a stream with the addresses of its arguments; returns the status."""


@dataclass(frozen=True)
class Function:
    """A kernel on a device."""

    handle: Any  # the driver's
    parameter_bytes: tuple[int, ...]  # size of each parameter


class CudaDriver:
    """The driver, through ``cuda.bindings``, in torch's contexts; devices go by torch's index."""

    def __init__(self) -> None:
        """Raise ``CudaUnavailable`` where there is no GPU that torch can use."""
        if not torch.cuda.is_available():
            raise CudaUnavailable(
                "no CUDA device: torch sees none here. Use the cpu backend, or install a torch "
                "built for CUDA on a machine with an NVIDIA GPU and driver."
            )
        self._cuda = load_bindings("driver")

    def architecture(self, device: int) -> str:
        """Architecture to compile for: ``sm_90a``."""
        return architecture_of(*torch.cuda.get_device_capability(device))

    def load(self, device: int, cubin: bytes) -> Any:
        """Put machine code on a device; returns its handle."""
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # torch's context is current in this thread from here on
            return self._checked("cuModuleLoadData", self._cuda.cuModuleLoadData(cubin))

    def function(self, device: int, loaded: Any, name: str) -> Function:
        """Look up a kernel by name."""
        with torch.cuda.device(device):
            found = self._cuda.cuModuleGetFunction(loaded, name.encode())
            handle = self._checked(f"cuModuleGetFunction({name})", found)
            sizes: list[int] = []
            while True:
                status, _, size = self._cuda.cuFuncGetParamInfo(handle, len(sizes))
                if status:  # there is no further parameter
                    return Function(handle, tuple(sizes))
                sizes.append(size)

    def launcher(
        self, device: int, function: Function, launch: Launch, packed: Packed
    ) -> Callable[[], None]:
        """A call that launches on the then current stream."""
        stream_call = self._stream_call(launch)
        handle, addresses = function.handle, addresses_in(packed)
        self._give_shared(device, function, launch)
        # What the inductor's generated code calls: the public way makes an object each time.
        stream_of = torch._C._cuda_getCurrentRawStream
        guard = torch.cuda.device

        # The default keeps alive what the addresses and the arguments point to.
        def call(_alive: object = (packed, launch)) -> None:
            with guard(device):  # stream 0 is the default stream of the current device
                status = stream_call(handle, stream_of(device), addresses)
            if status[0]:
                self._checked(f"launching {launch.kernel}", status)

        return call

    def _give_shared(self, device: int, function: Function, launch: Launch) -> None:
        """A kernel gets more than 48 KiB of shared memory only where that is said beforehand."""
        size = launch.shared_bytes
        if size:
            limit = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with torch.cuda.device(device):
                result = self._cuda.cuFuncSetAttribute(function.handle, limit, size)
            self._checked(f"giving {launch.kernel} {size} B of shared memory", result)

    def _stream_call(self, launch: Launch) -> _StreamCall:
        attributes = list(self._attributes(launch))
        return self._with(attributes, launch) if attributes else self._plain(launch)

    def _plain(self, launch: Launch) -> _StreamCall:
        start, (columns, rows), threads = self._cuda.cuLaunchKernel, launch.grid, launch.block
        shared = launch.shared_bytes

        def call(handle: Any, stream: int, addresses: int) -> Any:
            return start(handle, columns, rows, 1, threads, 1, 1, shared, stream, addresses, 0)

        return call

    def _attributes(self, launch: Launch) -> Iterator[Any]:
        ids = self._cuda.CUlaunchAttributeID
        if launch.dependent:  # in a captured graph an edge of it
            value = self._cuda.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            yield self._attribute(ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
        if launch.cluster > 1:
            value = self._cuda.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 1, launch.cluster, 1
            yield self._attribute(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)

    def _attribute(self, name: Any, value: Any) -> Any:
        attribute = self._cuda.CUlaunchAttribute()
        attribute.id, attribute.value = name, value
        return attribute

    def _with(self, attributes: list[Any], launch: Launch) -> _StreamCall:
        """May begin earlier, or runs by clusters."""
        start, config = self._cuda.cuLaunchKernelEx, self._cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *launch.grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        config.attrs, config.numAttrs = attributes, len(attributes)

        def call(handle: Any, stream: int, addresses: int) -> Any:
            config.hStream = stream
            return start(config, handle, addresses, 0)

        return call

    def _checked(self, call: str, result: tuple[Any, ...]) -> Any:
        status = result[0]
        if not status:
            return result[1] if len(result) > 1 else None
        text = self._cuda.cuGetErrorString(status)[1] or b"unknown error"
        advice = ""
        if "IMAGE" in status.name or "BINARY" in status.name or "PTX" in status.name:
            advice = " (the driver is older than NVRTC: update the driver)"
        raise DeviceError(f"{call} failed with {status.name}: {text.decode()}{advice}.")


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

    Raises:
        CudaUnavailable: No GPU, or a package is missing; says which.
        DeviceError: Arguments that the kernel cannot take, or the driver refuses.
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
    """Kernels loaded through one driver, each module once a device."""

    def __init__(
        self,
        driver: CudaDriver,
        build: Callable[[Sequence[KernelModule], str], list[bytes]] = load_cubins,
    ) -> None:
        """Compile with ``build(modules, architecture)``."""
        self._driver = driver
        self._build = build
        self._loaded: dict[tuple[KernelModule, int], Any] = {}
        self._functions: dict[tuple[KernelModule, str, int], Function] = {}

    def prepare(self, launch: Launch) -> Callable[[], None]:
        """See ``prepare``."""
        device = device_of(launch)
        function = self._function(launch.module, launch.kernel, device)
        packed = pack(launch, function.parameter_bytes)
        return self._driver.launcher(device, function, launch, packed)

    def load(self, modules: Iterable[KernelModule], device: int) -> None:
        """See ``compile_ahead``; what is loaded stays as it is."""
        absent = [each for each in dict.fromkeys(modules) if (each, device) not in self._loaded]
        cubins = self._build(absent, self._driver.architecture(device))
        for module, cubin in zip(absent, cubins, strict=True):
            self._loaded[module, device] = self._driver.load(device, cubin)

    def _function(self, module: KernelModule, kernel: str, device: int) -> Function:
        function = self._functions.get((module, kernel, device))
        if function is None:
            self.load([module], device)
            function = self._driver.function(device, self._loaded[module, device], kernel)
            self._functions[module, kernel, device] = function
        return function


@functools.cache
def _launcher() -> Launcher:
    return Launcher(CudaDriver())
