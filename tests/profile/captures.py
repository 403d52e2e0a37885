"""Captures of servers, made up once and written as either profiler writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.profile.exports import THREAD, Export
from tests.profile.traces import Event, event, save

ATTENTION, INSERT, PRODUCT = "kernel_unified_attention_2d", "reshape_and_cache_flash", "nvjet"
PREPARE, SAMPLE = "prepare_inputs", "sample_tokens"


@dataclass
class Capture:
    """What a host launched, in whole microseconds; a GPU does it in the order of the launches."""

    calls: list[tuple[int, int, bool, Sequence[tuple[str, int]]]] = field(default_factory=list)
    """Begin, thread, whether it launches a graph, and kernels with how long they take."""
    ranges: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Name, begin, end and thread of marked ranges."""

    def launch(
        self, at_us: int, *kernels: tuple[str, int], graph: bool = False, thread: int = 0
    ) -> None:
        self.calls.append((at_us, thread, graph, kernels))

    def mark(self, name: str, begin_us: int, end_us: int, thread: int = 0) -> None:
        self.ranges.append((name, begin_us, end_us, thread))

    @property
    def total_ns(self) -> int:
        """Time of all kernels."""
        return 1_000 * sum(length for *_, kernels in self.calls for _, length in kernels)

    def as_chrome(self, folder: Path) -> Path:
        events: list[Event] = [
            event("user_annotation", name, begin, end - begin, tid=thread)
            for name, begin, end, thread in self.ranges
        ]
        free = 0
        for number, (at, thread, graph, kernels) in enumerate(self.calls):
            name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
            events.append(event("cuda_runtime", name, at, 3, tid=thread, correlation=1 + number))
            free = max(free, at + 5)
            for kernel, length in kernels:
                where = {"device": 0, "stream": 7, "correlation": 1 + number}
                events.append(event("kernel", kernel, free, length, **where))
                free += length
        return save(folder / "capture.json", events)

    def as_nsys(self, folder: Path) -> Path:
        export, free = Export(), 0
        for name, begin, end, thread in self.ranges:
            export.range(name, begin * 1_000, end * 1_000, thread=THREAD + thread)
        for number, (at, thread, graph, kernels) in enumerate(self.calls):
            export.call(1 + number, at * 1_000, (at + 3) * 1_000, thread=THREAD + thread)
            free = max(free, at + 5)
            for place, (kernel, length) in enumerate(kernels):
                more = {"demangledName": export.string(kernel)}
                more |= {"graphNodeId": (number + 1 << 32) + place} if graph else {}
                export.kernel(kernel, 1 + number, free * 1_000, (free + length) * 1_000, **more)
                free += length
        return export.save(folder / "capture.sqlite")


WRITERS: dict[str, Callable[[Capture, Path], Path]] = {
    "Chrome trace": Capture.as_chrome,
    "nsys": Capture.as_nsys,
}


def launch_step(capture: Capture, at_us: int, layers: int, apart_us: int = 20) -> int:
    """A step of piecewise graphs: inserts and attention are launched between them.

    Returns:
        When the last call began.
    """
    capture.launch(at_us, (PREPARE, 4))
    for _ in range(layers):
        capture.launch(at := at_us + apart_us, (PRODUCT, 30), ("norm", 5), graph=True)
        capture.launch(at := at + apart_us, (INSERT, 2))
        capture.launch(at := at + apart_us, (ATTENTION, 9))
        at_us = at
    capture.launch(at_us + apart_us, (PRODUCT, 30), graph=True)
    capture.launch(at_us + 2 * apart_us, (SAMPLE, 3))
    return at_us + 2 * apart_us


def piecewise(steps: int = 3, layers: int = 4, pause_us: int = 2_000) -> Capture:
    """Steps of piecewise graphs, with pauses between them in which the host schedules."""
    capture, at = Capture(), 100
    for _ in range(steps):
        at = launch_step(capture, at, layers) + pause_us
    return capture
