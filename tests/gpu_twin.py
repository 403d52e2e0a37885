"""A GPU made of the kernels' CPU twin: launches run on the host, graphs keep what was launched.

As on a GPU, capturing runs nothing, and a replay repeats the launches with the addresses and
numbers they were captured with: whatever a graph should follow must lie in memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest.mock import patch

import torch

from dsv4kv.bench.device import CallTimer, CudaDevice, Event, Rules
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.launches import KernelModule, Launch
from tests.examples import FULL
from tests.kernels.shim import twin

MICROSECOND_MS = 1e-3
SAMPLES = 2  # of every timed operation: a host takes its time to play a GPU
_AT_ONCE = ("unit", "warmup", "window", "rewarm_window", "most_warmup", "batch", "least")
FEW_REPLAYS = Rules(
    **{f"{time}_ns": 0 for time in _AT_ONCE}, fewest_samples=SAMPLES, half_width=math.inf
)


@dataclass
class TwinGpu:
    """The launches of a process: run at once, or kept while a graph is captured.

    Attributes:
        launched: Kernels launched outside any graph.
        replays: Graphs replayed.
        captured: Launches of every capture that has any.
        modules: Of all launches.
        foreseen: Modules that were asked for before they were launched.
    """

    launched: list[str] = field(default_factory=list)
    replays: int = 0
    captured: list[list[Launch]] = field(default_factory=list, repr=False)
    modules: set[KernelModule] = field(default_factory=set, repr=False)
    foreseen: set[KernelModule] = field(default_factory=set, repr=False)
    _capturing: list[Launch] | None = None

    def prepare(self, launch: Launch) -> Callable[[], None]:
        """Stands for ``Launcher.prepare``."""
        self.modules.add(launch.module)

        def call() -> None:
            if self._capturing is not None:
                self._capturing.append(launch)
            else:
                self.launched.append(launch.kernel)
                twin.run(launch)

        return call

    def load(self, modules: Iterable[KernelModule], device: int) -> None:
        """Stands for ``Launcher.load``: a twin is built when it is first run."""
        self.foreseen.update(modules)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Stands for ``cuda_capture``: warms up, then captures."""
        run()
        kept: list[Launch] = []
        self._capturing = kept
        try:
            run()
        finally:
            self._capturing = None
        if kept:
            self.captured.append(kept)

        def replay() -> None:
            self.replays += 1
            for launch in kept:
                twin.run(launch)

        return replay


class TwinEvent:
    """A moment; each is a microsecond after the one recorded before it."""

    _recorded = 0

    def __init__(self) -> None:
        self.at = -1

    def record(self) -> None:
        TwinEvent._recorded += 1
        self.at = TwinEvent._recorded

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, TwinEvent)
        return (end.at - self.at) * MICROSECOND_MS


def twin_device(gpu: TwinGpu, free_bytes: int = 1 << 34, l2_bytes: int = 0) -> CudaDevice:
    """The twin as a run sees it; without an L2 cache, everything is cold."""
    cpu = torch.device("cpu")
    return CudaDevice(cpu, "sm_90a", free_bytes, l2_bytes, TwinEvent, lambda: gpu.capture)


def _take(_timer: CallTimer, _replay: Callable[[], None], count: int) -> list[int]:
    """Stands for timed replays: capturing ran the calls, and nobody looks at what these leave."""
    return [round(MICROSECOND_MS * 1e6)] * count


@contextmanager
def twin_gpu(free_bytes: int = 1 << 34, l2_bytes: int = 0) -> Iterator[TwinGpu]:
    """Every run that asks for ``cuda`` or ``auto`` finds the twin; ``cpu`` stays the CPU."""
    gpu = TwinGpu()
    device = twin_device(gpu, free_bytes, l2_bytes)

    def find(wanted: str) -> CudaDevice | None:
        return None if wanted == "cpu" else device

    with (
        patch.object(launching, "_launcher", lambda: gpu),
        patch("dsv4kv.bench.run.find_device", find),
        patch("dsv4kv.bench.device.RULES", FEW_REPLAYS),
        nullcontext() if FULL else patch.object(CallTimer, "_take", _take),
    ):
        yield gpu
