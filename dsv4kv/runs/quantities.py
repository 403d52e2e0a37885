"""What a record measured: quantities, baselines of rates, shares of a step, a window's polls."""

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsv4kv.budget.gpus import gpu_names, load_gpu
from dsv4kv.runs.parts import MeasuredWindow, Samples, Telemetry
from dsv4kv.runs.schema import Case, GpuFacts, Operation, RunRecord
from dsv4kv.runs.statistics import Estimate, estimate_rate, summarize


def axis_names(cases: Sequence[Case]) -> dict[str, str]:
    """Short name of every swept setting: the last part of its path unless two share it."""
    paths = list(dict.fromkeys(path for case in cases for path in case.axis))
    last = [path.rpartition(".")[2] for path in paths]
    counts = Counter(last)
    return {
        path: path if counts[name] > 1 else name for path, name in zip(paths, last, strict=True)
    }


def swept(cases: Sequence[Case]) -> str:
    """`` by block tokens, concurrency``; empty where nothing is swept."""
    names = ", ".join(axis_names(cases).values())
    return f" by {names.replace('_', ' ')}" if names else ""


def axis_text(case: Case) -> str:
    """The swept settings of a case: ``block_tokens=256, concurrency=8``."""
    names = axis_names([case])
    written = {path: v if isinstance(v, str) else json.dumps(v) for path, v in case.axis.items()}
    return ", ".join(f"{names[path]}={text}" for path, text in written.items())


@dataclass(frozen=True)
class Quantity:
    """A time that another launch, or another run, measures again."""

    axis: str  # swept settings of the case; empty without a sweep
    name: str  # operation, or bookkeeping action
    layer_type: str = ""  # of the layers an operation ran on; empty for bookkeeping
    temperature: str = ""  # ``cold``, ``hot``, ``L2-resident`` or empty

    def __str__(self) -> str:
        words = (self.name, self.layer_type, self.temperature)
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Measured:
    """The samples of a quantity in one launch."""

    quantity: Quantity  # what was measured
    launch: int  # by which fresh process
    samples_ns: Sequence[int]  # at least one
    bytes: Sequence[int]  # useful bytes of each call; empty for bookkeeping
    virtual: bool = False  # whether times are those of a model, which every run gives again
    # what nine of ten of such times are right within; None where that is not known
    factor: float | None = None

    @property
    def median_ns(self) -> float:
        return summarize(self.samples_ns).median

    @property
    def rate_gbps(self) -> Estimate | None:
        """All useful bytes over all time; None for bookkeeping."""
        return estimate_rate(self.bytes, self.samples_ns) if self.bytes else None

    @property
    def bytes_per_call(self) -> float:
        """Mean size of a call, which calls of the same work share; 0 for bookkeeping."""
        return sum(self.bytes) / len(self.bytes) if self.bytes else 0.0


def by_quantity(record: RunRecord) -> dict[Quantity, list[Measured]]:
    """Every quantity that has samples with its launches, in the record's order."""
    groups: dict[Quantity, list[Measured]] = {}
    for each in (measured for case in record.cases for measured in measured_in(case)):
        groups.setdefault(each.quantity, []).append(each)
    return groups


def over_launches(values: Sequence[float]) -> Estimate | None:
    """Median of one value per launch, with the 95 % interval of the median launch from six on."""
    return summarize(values).estimate if values else None


def ratio_of_calls(before: Measured, after: Measured) -> float:
    """Ratio of times, after to before, of two interleaved launches: median over equal calls."""
    first, second = np.asarray(before.samples_ns), np.asarray(after.samples_ns)
    if len(first) != len(second) or list(before.bytes) != list(after.bytes):
        return after.median_ns / before.median_ns
    both = (first > 0) & (second > 0)
    return float(np.exp(np.median(np.log(second[both] / first[both]))))


def measured_in(case: Case) -> Iterator[Measured]:
    """Quantities of one case: operations first."""
    axis = axis_text(case)
    virtual = case.replay is not None and case.replay.data is None  # steps counted and not done
    for each in case.operations:
        if each.samples_ns:
            quantity = Quantity(axis, each.name, each.layer_type, each.temperature or "")
            yield Measured(quantity, case.launch, each.samples_ns, each.bytes)
    for latency in case.latencies:
        if latency.samples_ns:
            quantity, samples = Quantity(axis, latency.name), latency.samples_ns
            yield Measured(quantity, case.launch, samples, (), virtual, latency.factor)


def latency_median(case: Case, name: str) -> Estimate | None:
    """Median of a latency in ns; None where it was not measured."""
    return over_launches(_samples(case, name))


def within(value: float, factor: float) -> Estimate:
    """A clock's time with the factor that it is right within as its error."""
    arms = value - value / factor, value * factor - value
    return Estimate(value, max(arms), arms)


def clock_factor(case: Case, name: str) -> float | None:
    """What the clock's times of a latency are right within; None where that is not known."""
    return next((each.factor for each in case.latencies if each.name == name), None)


def gather_rate(case: Case) -> Estimate | None:
    """GB/s of all gather operations together, of the cold ones where others were measured too."""
    gathers = [
        each
        for each in case.operations
        if each.name.startswith("gather") and each.temperature in (None, "cold")
    ]
    return estimate_rate(
        [size for each in gathers for size in each.bytes],
        [time for each in gathers for time in each.samples_ns],
    )


def saved_percent(case: Case) -> float | None:
    """Prompt tokens that a replay did not compute, of all; None for anything else."""
    if case.replay is None or not case.replay.reuse.prompt_tokens:
        return None
    return case.replay.reuse.saved_tokens / case.replay.reuse.prompt_tokens * 100


def allocated_bytes(case: Case) -> int | None:
    """Bytes of all pools; None where none was allocated."""
    pools = case.cache.pools if case.cache else []
    return sum(pool.allocated_bytes for pool in pools) if pools else None


# ---- baselines of rates: plain copies on the same machine, in the same run

_COPIES = ("copy", "torch_copy")  # with our own accesses, and with torch's


@dataclass(frozen=True)
class Yardstick:
    """Plain memory traffic."""

    name: str  # ``memcpy``, or on a GPU ``copy``, ``torch_copy``, ``read`` or ``write``
    bytes: int  # bytes read plus bytes written by one call
    samples_ns: Sequence[int]  # duration of every call
    throttled: int = 0  # calls left out, as the GPU was throttled during them

    @property
    def rate(self) -> Estimate | None:
        """GB/s."""
        return estimate_rate([self.bytes] * len(self.samples_ns), self.samples_ns)


def yardsticks(case: Case) -> list[Yardstick]:
    """Baselines of a case; percentages are of the first, the fastest copy."""
    if case.memcpy:
        return [Yardstick("memcpy", case.memcpy.bytes, case.memcpy.samples_ns)]
    found = [
        Yardstick(peak.name, peak.bytes, peak.samples_ns, peak.throttled) for peak in case.peaks
    ]
    copies = [each for each in found if each.name in _COPIES]
    copies.sort(key=lambda each: -each.rate.value if each.rate else 0.0)
    return [*copies, *(each for each in found if each.name not in _COPIES)]


_MEMORY_WITHIN = 0.03  # a driver keeps a part of the memory, a product with more has 10 % more
_WORD = re.compile(r"[a-z0-9]+")
_SIZE = re.compile(r"\d+gb")
_SLOWER_MEMORY = "pcie"  # cards with the name and size of a module, and other memory


def on_datasheet(gpu: GpuFacts, figure: str) -> int | None:
    """The figure on which all GPUs of the catalogue agree that this may be, or None.

    ``bandwidth_gbps``, or dense TFLOP/s of the tensor cores: ``fp8_tflops``, ``bf16_tflops``.
    """
    words, found = set(_WORD.findall(gpu.name.lower())), set[int]()
    for known in map(load_gpu, gpu_names()):
        needed = {word for word in _WORD.findall(known.name) if not _SIZE.fullmatch(word)}
        alike = abs(gpu.memory_bytes / known.memory_bytes - 1) < _MEMORY_WITHIN
        if needed <= words and _SLOWER_MEMORY not in words and alike:
            found.add(getattr(known, figure) or 0)
    found.discard(0)
    return found.pop() if len(found) == 1 else None


# ---- shares of a decode step

KINDS: dict[str, tuple[str, ...]] = {
    "scores": ("indexer_query", "index_scores"),
    "top-k": ("select_blocks", "select_topk"),
    "attention": ("attend",),
    "gathers": ("indexer_gather_all", "gather_all", "gather_topk", "gather_window"),
    "write": (),  # all others
}
"""Operations of a decode step by kind, in the order of a step."""


@dataclass(frozen=True)
class StepShare:
    """What one kind of work takes of a decode step, of all layers held and all requests."""

    kind: str  # one of ``KINDS``, or ``bookkeeping``
    bytes: float  # useful bytes, by the byte model
    ns: float  # time: the mean on a CPU, the sum of the operations' medians on a GPU


def step_shares(case: Case) -> list[StepShare]:
    """The kinds that a step has, bookkeeping last; nothing where no step is like another.

    On a CPU the contexts must be placed: else operations of prompts are among the samples. On a
    GPU operations were timed one by one, on requests as long as the pools hold.
    """
    found = {kind: StepShare(kind, 0, 0) for kind in KINDS}
    for each in case.operations:
        calls, size, time_ns = per_step(case, each)
        if calls:
            kind = next((kind for kind, names in KINDS.items() if each.name in names), "write")
            share = found[kind]
            found[kind] = replace(share, bytes=share.bytes + size, ns=share.ns + time_ns)
    shares = [share for share in found.values() if share.ns]
    prepare = _samples(case, "prepare")
    bookkeeping = StepShare("bookkeeping", 0, sum(prepare) / len(prepare) if prepare else 0)
    return [*shares, bookkeeping] if shares else []


def per_step(case: Case, operation: Operation) -> tuple[float, float, float]:
    """Calls of an operation in one step, their bytes, and their time in ns; 0 if not known."""
    samples = operation.samples_ns
    if operation.temperature is not None:
        calls = operation.calls_per_step or 0
        if operation.temperature == "hot" or not samples:
            return 0, 0, 0
        return calls, calls * operation.bytes[0], calls * summarize(samples).median
    steps = len(_samples(case, "decode_step"))
    workload = case.config.get("workload")
    if not steps or not isinstance(workload, dict) or not workload.get("context"):
        return 0, 0, 0
    return len(samples) / steps, sum(operation.bytes) / steps, sum(samples) / steps


def _samples(case: Case, name: str) -> Sequence[int]:
    return next((each.samples_ns for each in case.latencies if each.name == name), [])


# ---- what a machine did during a window: polls joined to it by time

REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "voltage reliability",
}
"""NVML's clock event reasons that are limits; idle (0x1) and a user's clocks (0x2) are not."""

_STEADY = 0.02  # a step of 15 MHz is 0.8 % of a clock: two are noise, more are a change
_NEAR_NS = 400_000_000  # two of the seldom polls

Value = int | float
Column = Sequence[Value | None] | None


@dataclass(frozen=True)
class WindowState:
    """The machine during a window; None where it was not recorded."""

    sm_clock_mhz: tuple[Value, Value] | None = None  # lowest and highest of the SMs
    memory_clock_mhz: tuple[Value, Value] | None = None  # likewise the memory's
    limits: dict[str, float] = field(default_factory=dict)  # share of time by what held clocks
    power_w: float | None = None  # mean power
    temperature_c: Value | None = None  # highest temperature
    other_processes: Value | None = None  # most other processes that computed on the GPU at once
    cpu_mhz: tuple[Value, Value] | None = None  # lowest and highest of the CPU it ran on
    other_cpus: float | None = None  # CPUs that others kept busy, in the mean

    @property
    def clock_moved(self) -> bool:
        """Whether the multiprocessors' clock was not one and the same all the time."""
        if self.sm_clock_mhz is None:
            return False
        low, high = self.sm_clock_mhz
        return high - low > _STEADY * high

    @property
    def is_limited(self) -> bool:
        """Whether clocks were held down or moved."""
        return bool(self.limits) or self.clock_moved


def window_state(telemetry: Telemetry, window: MeasuredWindow) -> WindowState:
    """Join what was polled to a window."""
    gpu, checks, host = telemetry.gpu_samples, telemetry.gpu_checks, telemetry.host_samples
    power_mw = _values(gpu, "power_mw", window)
    reasons = [int(bits) for bits in _values(gpu, "reasons", window)]
    counts = {name: sum(bool(bits & bit) for bits in reasons) for bit, name in REASONS.items()}
    busy_ns = _growth(host, "machine_busy_ns", window)
    own_ns = _growth(host, "own_cpu_ns", window)
    return WindowState(
        sm_clock_mhz=_range(_values(gpu, "sm_clock_mhz", window)),
        memory_clock_mhz=_range(_values(gpu, "memory_clock_mhz", window)),
        limits={name: n / len(reasons) for name, n in counts.items() if n},
        power_w=sum(power_mw) / len(power_mw) / 1e3 if power_mw else None,
        temperature_c=max(_values(gpu, "temperature_c", window), default=None),
        other_processes=max(_values(checks, "other_processes", window), default=None),
        cpu_mhz=_range(_values(host, "cpu_mhz", window)),
        other_cpus=max(0.0, (busy_ns[0] - own_ns[0]) / busy_ns[1]) if busy_ns and own_ns else None,
    )


def _values(samples: Samples | None, column: str, window: MeasuredWindow) -> list[Value]:
    """Values of the polls inside a window; where there are none, of the polls around it."""
    series: Column = getattr(samples, column, None)
    if samples is None or series is None:
        return []
    first = bisect_left(samples.at_ns, window.started_ns)
    last = bisect_right(samples.at_ns, window.ended_ns)
    if first < last:
        return [value for value in series[first:last] if value is not None]
    near = range(max(0, first - 1), min(last + 1, len(series)))
    earliest, latest = window.started_ns - _NEAR_NS, window.ended_ns + _NEAR_NS
    around = [series[i] for i in near if earliest <= samples.at_ns[i] <= latest]
    return [value for value in around if value is not None]


def _growth(
    samples: Samples | None, column: str, window: MeasuredWindow
) -> tuple[Value, int] | None:
    """Growth of a counter between the polls around a window, and the ns between; None without."""
    series: Column = getattr(samples, column, None)
    if samples is None or series is None:
        return None
    before = bisect_right(samples.at_ns, window.started_ns) - 1
    after = bisect_left(samples.at_ns, window.ended_ns)
    if before < 0 or after >= len(series) or before == after:
        return None
    start, end = series[before], series[after]
    if start is None or end is None:
        return None
    return end - start, samples.at_ns[after] - samples.at_ns[before]


def _range(values: Sequence[Value]) -> tuple[Value, Value] | None:
    return (min(values), max(values)) if values else None
