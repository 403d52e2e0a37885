"""The device of a run, and equal calls timed on it: warm up until flat, sample until known.

The rules are the same for GPUs and CPUs: what differs is how units of work are timed. On a GPU
calls are captured in a graph and replayed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.launches import most_blocks, pages
from dsv4kv.runs.parts import MeasuredWindow, Temperature
from dsv4kv.runs.schema import GpuFacts, Memcpy, Peak, PeakName
from dsv4kv.runs.statistics import summarize

Take = Callable[[int], list[int]]
"""Runs a number of equal units of work and gives the nanoseconds of each."""

Clock = Callable[[], int]

Throttled = Callable[[int, int], bool]
"""Whether the device was slowed by force between two moments of the clock."""

Event = Any
"""A moment on a device: ``torch.cuda.Event`` with timing, or what has its calls."""


@dataclass(frozen=True)
class Rules:
    """How long to warm up and to sample; times in nanoseconds, tolerances as fractions."""

    unit_ns: int = 1_000_000
    """A unit of work lasts at least this: shorter ones are repeated, so that events (0.5 µs apart
    at best) and launches hardly count."""
    warmup_ns: int = 3_000_000_000
    """Least time to warm up a device that was idle: clocks and voltage settle."""
    window_ns: int = 1_000_000_000
    """The last two windows of this length must agree before sampling begins."""
    rewarm_window_ns: int = 100_000_000  # the same, for a device that has worked until just now
    idle_ns: int = 1_000_000_000  # a device without work for longer is warmed up as an idle one
    flat: float = 0.005  # how far the medians of two windows may differ
    most_warmup_ns: int = 10_000_000_000  # sampling begins then in any case
    batch_ns: int = 100_000_000  # work handed over at once, before anybody looks at the samples
    fewest_samples: int = 30  # needed at least
    least_ns: int = 500_000_000  # sampled time needed at least: device counters see no less
    half_width: float = 0.005
    """Wanted half-width of the median's interval, as a fraction of the median."""
    most_ns: int = 10_000_000_000  # sampling ends then, known or not

    @property
    def least_total_ns(self) -> int:
        """What measuring takes at least on a device that has worked until just now."""
        return 2 * self.rewarm_window_ns + self.least_ns

    def within(self, total_ns: int) -> "Rules":
        """The same, ending after ``total_ns`` in any case; warming up takes its share of that."""
        warmup_ns = total_ns * 2 * self.rewarm_window_ns // max(1, self.least_total_ns)
        return replace(
            self,
            warmup_ns=min(self.warmup_ns, warmup_ns),
            most_warmup_ns=min(self.most_warmup_ns, warmup_ns),
            most_ns=min(self.most_ns, total_ns - warmup_ns),
        )


RULES = Rules()

_MOST_AT_ONCE = 256  # a device's queue takes about a thousand launches


@dataclass(frozen=True)
class Timing:
    """Samples, and how they came about."""

    samples_ns: list[int]
    """Nanoseconds of one call, one element per unit of work; none where all were throttled."""
    started_ns: int  # when sampling began, of ``perf_counter_ns``
    ended_ns: int  # when it ended
    converged: bool  # whether the median is as well known as the rules want it
    throttled: int = 0  # samples during which the device was throttled, and which are dropped


def measure(
    take: Take,
    calls: int,
    rules: Rules,
    *,
    was_idle: bool = True,
    clock_ns: Clock = perf_counter_ns,
    throttled: Throttled | None = None,
) -> Timing:
    """Warm up and sample units of ``calls`` calls each; throttled ones are dropped."""
    count = _batch(_warm_up(take, rules, was_idle, clock_ns), rules)
    started_ns, elapsed_ns, converged = clock_ns(), 0, False
    batches: list[tuple[int, int, list[int]]] = []  # begin, end and samples of each
    whole: list[int] = []
    while not converged and (not batches or elapsed_ns < rules.most_ns):
        began_ns, units_ns = clock_ns(), take(count)
        batches.append((began_ns, clock_ns(), units_ns))
        whole += units_ns
        elapsed_ns = clock_ns() - started_ns
        enough = len(whole) >= rules.fewest_samples and elapsed_ns >= rules.least_ns
        converged = enough and is_known(whole, rules)
    ended_ns, kept = clock_ns(), whole
    # asking is costly: once where the device was never throttled
    if throttled is not None and throttled(batches[0][0], batches[-1][1]):
        kept = [unit for *span, units in batches if not throttled(*span) for unit in units]
    left_out = len(whole) - len(kept)
    return Timing(
        samples_ns=[round(unit / calls) for unit in kept],
        started_ns=started_ns,
        ended_ns=ended_ns,
        converged=converged if not left_out else bool(kept) and is_known(kept, rules),
        throttled=left_out,
    )


def rounds_for(take: Take, rules: Rules, most: int) -> int:
    """How often work must be repeated to last ``rules.unit_ns``; at most ``most`` times."""
    if not rules.unit_ns:
        return 1
    take(1)  # the first brings code and pages
    shortest_ns = max(1, *take(1))
    if shortest_ns < rules.unit_ns:
        shortest_ns = max(1, min(shortest_ns, *take(3)))
    return max(1, min(most, -(-rules.unit_ns // shortest_ns)))


def is_known(samples_ns: Sequence[int], rules: Rules) -> bool:
    """Whether the median is known to ``rules.half_width``, and the halves agree: no drift."""
    estimate, middle = summarize(samples_ns).estimate, len(samples_ns) // 2
    spread = math.inf if estimate.half_width is None else estimate.half_width
    drift = abs(float(np.median(samples_ns[:middle]) - np.median(samples_ns[middle:])))
    return max(spread, drift / 2) <= rules.half_width * estimate.value


def _warm_up(take: Take, rules: Rules, was_idle: bool, clock_ns: Clock) -> float:
    """Work until two windows agree; returns the nanoseconds of a unit in the last one."""
    least_ns = rules.warmup_ns if was_idle else 0
    window_ns = rules.window_ns if was_idle else rules.rewarm_window_ns
    started_ns, before = clock_ns(), math.inf
    while True:
        window_started_ns, found = clock_ns(), take(1)
        while clock_ns() - window_started_ns < window_ns:
            found += take(_batch(found[-1], rules))
        unit_ns = float(np.median(found))
        elapsed_ns = clock_ns() - started_ns
        is_flat = abs(unit_ns - before) <= rules.flat * unit_ns
        if (is_flat and elapsed_ns >= least_ns) or elapsed_ns >= rules.most_warmup_ns:
            return unit_ns
        before = unit_ns


def _batch(unit_ns: float, rules: Rules) -> int:
    return max(1, min(_MOST_AT_ONCE, math.ceil(rules.batch_ns / max(1.0, unit_ns))))


def timed_ns(call: Callable[[], object]) -> int:
    started_ns = perf_counter_ns()
    call()
    return perf_counter_ns() - started_ns


_COPIES = 10
_FILL = 0x5A  # not zero: untouched zero pages share one physical page and copy too fast


def measure_memcpy(size_bytes: int) -> list[int]:
    """Durations in ns of copies, each moving twice its size, after one untimed copy."""
    source = torch.full((size_bytes,), _FILL, dtype=torch.uint8)
    copy = partial(torch.ones_like(source).copy_, source)
    copy()
    return [timed_ns(copy) for _ in range(_COPIES)]


class DeviceClock:
    """Times spans of launched work, from when the device is done with what came before."""

    def __init__(self, make_event: Callable[[], Event]) -> None:
        self._make_event = make_event
        self._spans: list[tuple[str, Event, Event]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is launched inside; a span that raises is not kept."""
        start, end = self._make_event(), self._make_event()
        start.record()
        yield
        end.record()
        self._spans.append((name, start, end))

    def read_ns(self) -> dict[str, list[int]]:
        """Durations of all spans so far by name, in order; waits for the device."""
        found: dict[str, list[int]] = defaultdict(list)
        if self._spans:
            self._spans[-1][2].synchronize()
        for name, start, end in self._spans:
            found[name].append(round(start.elapsed_time(end) * 1e6))
        return dict(found)


Replay = Callable[[], None]
"""Does captured work again, on the current stream."""

Capture = Callable[[Callable[[], None]], Replay]
"""Calls a function to warm up, then again to capture what it launches."""


def cuda_capture() -> Capture:
    """Captures in CUDA graphs that share one memory pool: capture the largest first."""
    pool: list[Any] = [None]

    def capture(run: Callable[[], None]) -> Replay:
        # The first call loads kernels and makes torch's allocations, which a capture must not; on
        # a stream of its own, as torch asks for.
        make_stream: Any = torch.cuda.Stream
        side = make_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool[0]):
            run()
        pool[0] = graph.pool()
        replay: Replay = graph.replay
        return replay

    return capture


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
    device, event = torch.device("cuda", torch.cuda.current_device()), torch.cuda.Event
    return CudaDevice(
        device,
        architecture=architecture_of(*torch.cuda.get_device_capability(device)),
        free_bytes=torch.cuda.mem_get_info(device)[0],
        l2_bytes=torch.cuda.get_device_properties(device).L2_cache_size,
        make_event=partial(event, enable_timing=True),
        make_capture=cuda_capture,
    )


def describe_gpu(wanted: str) -> GpuFacts | None:
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


def gpu_uuid(device: CudaDevice | None) -> str | None:
    if device is None or device.device.type != "cuda":
        return None
    facts: Any = torch.cuda.get_device_properties(device.device)
    return str(facts.uuid)


EMPTY_KERNEL = "empty kernel"

_CHAIN = 64  # empty kernels, one after the other
_FOREVER_NS = 1 << 62
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
        throttled: Throttled | None = None,
        seconds: float | None = None,
        *,
        rules: Rules | None = None,
        sleep: Callable[[int], None] | None = None,
        clock_ns: Clock = perf_counter_ns,
    ) -> None:
        """``seconds`` are for all that is measured; None sets no limit.

        ``sleep`` lets the device wait for a number of cycles; None where it cannot.
        """
        self.device = device
        self._windows = [] if windows is None else windows
        self._rules, self._clock_ns, self._throttled = rules or RULES, clock_ns, throttled
        self._end_ns = clock_ns() + (_FOREVER_NS if seconds is None else round(seconds * 1e9))
        on_gpu: Any = torch.cuda._sleep if device.device.type == "cuda" else None
        self._sleep = sleep or on_gpu
        self._worked_ns: int | None = None

    def share_ns(self, measurements: int) -> int | None:
        """Time for the first of the measurements to come; None where too little is left.

        One that needs less leaves the rest to those that follow; where not all can have the least
        they need, the first have it.
        """
        left_ns, least_ns = self._end_ns - self._clock_ns(), self._rules.least_total_ns
        return None if left_ns < least_ns else max(least_ns, left_ns // measurements)

    def measure(
        self,
        calls: Sequence[Callable[[], object]],
        name: str,
        layer_type: str | None = None,
        temperature: Temperature | None = None,
        most_ns: int | None = None,
    ) -> Timing:
        """Time one of the calls, all of one kind; it ends after ``most_ns`` in any case."""
        replay = self._capture(calls)
        rounds = rounds_for(partial(self._take, replay), self._rules, _MOST_ROUNDS)
        if rounds > 1:
            replay = self._capture([*calls] * rounds)
        idle_ns = math.inf if self._worked_ns is None else self._clock_ns() - self._worked_ns
        timing = measure(
            partial(self._take, replay),
            rounds * len(calls),
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
