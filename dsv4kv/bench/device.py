"""The GPU of a run, and equal calls timed on it: captured in a graph and replayed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch

from dsv4kv.bench import protocol
from dsv4kv.bench.protocol import Budget, Event, Timing, measure_memcpy
from dsv4kv.bench.serve.graphs import Capture, Replay, cuda_capture
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.launches import most_blocks, pages
from dsv4kv.runs.part import Temperature
from dsv4kv.runs.schema import GpuFacts, Memcpy, Peak, PeakName
from dsv4kv.runs.telemetry import MeasuredWindow


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
            "torch sees no CUDA device here: install a torch built for CUDA on a machine with an "
            "NVIDIA GPU and driver, or set a configuration's device to cpu or auto."
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


EMPTY_KERNEL = "empty kernel"

_CHAIN = 64  # empty kernels, one after the other
_MOST_ROUNDS = 512  # capturing and instantiating more takes longer than it gains

# About 2 ms at 2 GHz: longer than the host takes to launch any graph here. From then on every
# replay outlasts the launch of the next one.
_HEAD_START_CYCLES = 4_000_000


class CallTimer:
    """Times calls on one GPU, captured and replayed; it is warmed up whenever it was idle.

    Every replay has its own pair of events and the host waits once a batch. After a sleep of the
    device the host stays ahead, so launch overhead is not part of a sample.
    """

    def __init__(
        self,
        device: CudaDevice,
        windows: list[MeasuredWindow] | None = None,
        throttled: protocol.Throttled | None = None,
        budget: Budget | None = None,
        *,
        rules: protocol.Rules | None = None,
        sleep: Callable[[int], None] | None = None,
        clock_ns: protocol.Clock = perf_counter_ns,
    ) -> None:
        """``sleep`` lets the device wait for a number of cycles; None where it cannot."""
        self.device = device
        self._windows = [] if windows is None else windows
        self._throttled, self._budget = throttled, budget or Budget(None)
        self._rules, self._clock_ns = rules or protocol.RULES, clock_ns
        on_gpu: Any = torch.cuda._sleep if device.device.type == "cuda" else None
        self._sleep = sleep or on_gpu
        self._worked_ns: int | None = None

    def share_ns(self, measurements: int) -> int | None:
        """Time for the first of the measurements to come; None where too little is left."""
        return self._budget.share_ns(measurements, self._rules.least_total_ns)

    def measure(
        self,
        calls: Sequence[Callable[[], object]],
        name: str,
        layer_type: str | None = None,
        temperature: Temperature | None = None,
        most_ns: int | None = None,
    ) -> Timing:
        """Time one of the calls, all of one kind; it ends after ``most_ns`` in any case."""
        replay, rounds = self._capture(calls), 1
        if calls:
            take = partial(self._take, replay)
            rounds = protocol.rounds_for(take, self._rules, _MOST_ROUNDS)
        if rounds > 1:
            replay = self._capture([*calls] * rounds)
        idle_ns = math.inf if self._worked_ns is None else self._clock_ns() - self._worked_ns
        timing = protocol.measure(
            partial(self._take, replay),
            rounds * max(1, len(calls)),
            self._rules if most_ns is None else self._rules.within(most_ns),
            was_idle=idle_ns > self._rules.idle_ns,
            clock_ns=self._clock_ns,
            throttled=self._throttled,
        )
        self._worked_ns = self._clock_ns()
        self._windows.append(
            MeasuredWindow(
                name=name,
                layer_type=layer_type,
                temperature=temperature,
                started_ns=timing.started_ns,
                ended_ns=timing.ended_ns,
                converged=timing.converged,
            )
        )
        return timing

    def _take(self, replay: Callable[[], None], count: int) -> list[int]:
        make = self.device.make_event
        pairs = [(make(), make()) for _ in range(count)]
        if self._sleep is not None:
            self._sleep(_HEAD_START_CYCLES)
        for start, end in pairs:
            start.record()
            replay()
            end.record()
        pairs[-1][1].synchronize()
        return [round(start.elapsed_time(end) * 1e6) for start, end in pairs]

    def time_floor(self) -> list[int]:
        """Nanoseconds of an empty kernel."""
        nothing = pages.plan_nothing(torch.empty(1, device=self.device.device))
        return self.measure([prepare(nothing)] * _CHAIN, EMPTY_KERNEL).samples_ns

    def _capture(self, calls: Sequence[Callable[[], object]]) -> Replay:
        def run() -> None:
            for call in calls:
                call()

        return self.device.make_capture()(run)


def measure_baseline(device: CudaDevice | None, size_bytes: int) -> dict[str, Any]:
    """What a case's rates are compared with: ``peaks`` of a GPU, or ``memcpy`` of the host."""
    if device is not None:
        return {"peaks": measure_peaks(device, size_bytes)}
    return {"memcpy": Memcpy(bytes=2 * size_bytes, samples_ns=measure_memcpy(size_bytes))}


_CALLS = 4  # in one graph
_MOST_NS = 5_000_000_000  # of each: they are steady, and every row waits for them


def measure_peaks(
    device: CudaDevice, size_bytes: int, timer: CallTimer | None = None
) -> list[Peak]:
    """Copy, read and write ``size_bytes``; a copy reads and writes every byte.

    Both torch's copy and the one with our own accesses are timed, and the faster is what others
    are compared with. Buffers hold random bytes: zeros may be stored or moved in fewer.
    """
    timer = timer or CallTimer(device)
    source = torch.empty(size_bytes, dtype=torch.uint8, device=device.device).random_(0, 256)
    target = torch.empty_like(source)
    sums = torch.empty(
        most_blocks(source) * pages.THREADS, dtype=torch.int32, device=device.device
    )
    calls: dict[PeakName, tuple[int, Callable[[], object]]] = {
        "copy": (2 * size_bytes, prepare(pages.plan_copy_peak(source, target))),
        "torch_copy": (2 * size_bytes, lambda: target.copy_(source)),
        "read": (size_bytes, prepare(pages.plan_read_peak(source, sums))),
        "write": (size_bytes, prepare(pages.plan_write_peak(target))),
    }
    peaks = []
    for name, (moved, call) in calls.items():
        timing = timer.measure([call] * _CALLS, name, most_ns=_MOST_NS)
        if timing.samples_ns:
            samples_ns, throttled = timing.samples_ns, timing.throttled
            peaks.append(Peak(name=name, bytes=moved, samples_ns=samples_ns, throttled=throttled))
    return peaks
