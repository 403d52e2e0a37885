"""What a record measured: operations and latencies, baselines of rates, shares of a step."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsv4kv.budget.gpus import gpu_names, load_gpu
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
    return ", ".join(f"{names[path]}={setting_text(v)}" for path, v in case.axis.items())


def setting_text(value: Any) -> str:
    """A setting as it is written in YAML: ``8``, ``true``, ``[0, 2]``, ``radix``."""
    return value if isinstance(value, str) else json.dumps(value)


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
        """Middle of the samples."""
        return summarize(self.samples_ns).median

    @property
    def rate_gbps(self) -> Estimate | None:
        """All useful bytes over all time; None for bookkeeping."""
        return estimate_rate(self.bytes, self.samples_ns) if self.bytes else None

    @property
    def bytes_per_call(self) -> float:
        """Mean size of a call, which calls of the same work share; 0 for bookkeeping."""
        return sum(self.bytes) / len(self.bytes) if self.bytes else 0.0


def list_measured(record: RunRecord) -> list[Measured]:
    """Every quantity that has samples, in the record's order."""
    return [measured for case in record.cases for measured in measured_in(case)]


def by_quantity(measured: Iterable[Measured]) -> dict[Quantity, list[Measured]]:
    """The launches of every quantity together."""
    groups: dict[Quantity, list[Measured]] = {}
    for each in measured:
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

COPIES = ("copy", "torch_copy")
"""Peaks that read and write as much: with our own accesses, and with torch's."""


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
    copies = [each for each in found if each.name in COPIES]
    copies.sort(key=lambda each: -each.rate.value if each.rate else 0.0)
    return [*copies, *(each for each in found if each.name not in COPIES)]


_MEMORY_WITHIN = 0.03  # a driver keeps a part of the memory, a product with more has 10 % more
_WORD = re.compile(r"[a-z0-9]+")
_SIZE = re.compile(r"\d+gb")
_SLOWER_MEMORY = "pcie"  # cards with the name and size of a module, and other memory


def datasheet_gbps(gpu: GpuFacts) -> int | None:
    """Memory bandwidth in GB/s; None rather than a guess."""
    return _on_datasheet(gpu, "bandwidth_gbps")


def datasheet_tflops(gpu: GpuFacts, *, fp8: bool) -> int | None:
    """Dense rate of the tensor cores in TFLOP/s, of FP8 or bf16; None rather than a guess."""
    return _on_datasheet(gpu, "fp8_tflops" if fp8 else "bf16_tflops")


def _on_datasheet(gpu: GpuFacts, figure: str) -> int | None:
    """The figure on which all GPUs of the catalogue agree that this may be."""
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

BOOKKEEPING = "bookkeeping"


@dataclass(frozen=True)
class StepShare:
    """What one kind of work takes of a decode step, of all layers held and all requests."""

    kind: str  # one of ``KINDS``, or ``BOOKKEEPING``
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
            kind = kind_of(each.name)
            share = found[kind]
            found[kind] = replace(share, bytes=share.bytes + size, ns=share.ns + time_ns)
    shares = [share for share in found.values() if share.ns]
    prepare = _samples(case, "prepare")
    bookkeeping = StepShare(BOOKKEEPING, 0, sum(prepare) / len(prepare) if prepare else 0)
    return [*shares, bookkeeping] if shares else []


def kind_of(name: str) -> str:
    """The kind of an operation, by its name."""
    return next((kind for kind, names in KINDS.items() if name in names), "write")


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
