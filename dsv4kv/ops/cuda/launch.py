"""Launch plans on the GPU: compiled, loaded, packed, launched.

``run`` does it all at once; a timed loop calls what ``prepare`` returns, which does nothing but
launch. Whatever is captured in a CUDA graph must have run once before: loading allocates.
``compile_ahead`` saves first launches from compiling one after the other.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from dsv4kv.ops.cuda.compile import load_cubins
from dsv4kv.ops.cuda.driver import CudaDriver, Driver, Function, device_of, pack
from dsv4kv.ops.kernels.launch import KernelModule, Launch

_DEPENDENT = ContextVar("dependent", default=False)


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
    _launcher().prepare(replace(launch, dependent=True) if _DEPENDENT.get() else launch)()


def prepare(launch: Launch) -> Callable[[], None]:
    """Do everything but the launch; the returned call launches, again and again.

    The launch's tensors are kept alive as long as the call is. Raises as ``run`` does.
    """
    return _launcher().prepare(launch)


def compile_ahead(modules: Iterable[KernelModule], device: torch.device) -> None:
    """Compile modules side by side and load them; any other does so at its first launch.

    ``foresight.foresee`` names those of a cache. Raises as ``run`` does.
    """
    _launcher().load(modules, device.index or 0)


class Launcher:
    """Kernels loaded through one driver, each module once a device."""

    def __init__(
        self,
        driver: Driver,
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
