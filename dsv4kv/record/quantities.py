"""What a record measured, one by one: every operation and latency of every case and launch."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4kv.measure.statistics import Estimate, estimate_rate, summarize
from dsv4kv.record.schema import Case, RunRecord


def axis_names(cases: Sequence[Case]) -> dict[str, str]:
    """Short name of every swept setting: the last part of its path unless two share it."""
    paths = list(dict.fromkeys(path for case in cases for path in case.axis))
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: path if last.count(name) > 1 else name
        for path, name in zip(paths, last, strict=True)
    }


def axis_text(case: Case) -> str:
    """The swept settings of a case: ``block_tokens=256, concurrency=8``."""
    names = axis_names([case])
    return ", ".join(f"{names[path]}={setting_text(v)}" for path, v in case.axis.items())


def setting_text(value: Any) -> str:
    """A setting as it is written in YAML: ``8``, ``true``, ``[0, 2]``, ``radix``."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Quantity:
    """A time that another launch, or another run, measures again.

    Attributes:
        axis: Swept settings of the case; empty without a sweep.
        name: Operation, or bookkeeping action.
        layer_type: Of the layers an operation ran on; empty for bookkeeping.
        temperature: ``cold``, ``hot``, ``L2-resident`` or empty.
    """

    axis: str
    name: str
    layer_type: str = ""
    temperature: str = ""

    def __str__(self) -> str:
        words = (self.name, self.layer_type, self.temperature)
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Measured:
    """The samples of a quantity in one launch.

    Attributes:
        quantity: What was measured.
        launch: By which fresh process.
        samples_ns: At least one.
        bytes: Useful bytes of each call; empty for bookkeeping.
        virtual: Whether times are those of a model, which every run gives again.
        factor: What nine of ten of such times are right within; None where that is not known.
    """

    quantity: Quantity
    launch: int
    samples_ns: Sequence[int]
    bytes: Sequence[int]
    virtual: bool = False
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
    """How many times as long ``after`` takes, of two launches with interleaved steps.

    The median over equal calls, one shortly after the other; the ratio of the medians where the
    calls are not equal. Both medians must be above 0.
    """
    first, second = np.asarray(before.samples_ns), np.asarray(after.samples_ns)
    if len(first) != len(second) or list(before.bytes) != list(after.bytes):
        return after.median_ns / before.median_ns
    both = (first > 0) & (second > 0)
    return float(np.exp(np.median(np.log(second[both] / first[both]))))


def is_virtual(case: Case) -> bool:
    """Whether a case is a replay whose steps were counted and not done."""
    return case.replay is not None and case.replay.data is None


def measured_in(case: Case) -> Iterator[Measured]:
    """Those of one case: operations first."""
    axis = axis_text(case)
    for each in case.operations:
        if each.samples_ns:
            quantity = Quantity(axis, each.name, each.layer_type, each.temperature or "")
            yield Measured(quantity, case.launch, each.samples_ns, each.bytes)
    for latency in case.latencies:
        if latency.samples_ns:
            quantity = Quantity(axis, latency.name)
            virtual = is_virtual(case)
            samples, factor = latency.samples_ns, latency.factor
            yield Measured(quantity, case.launch, samples, (), virtual, factor)


def latency_median(case: Case, name: str) -> Estimate | None:
    """Median of a latency in ns; None where it was not measured."""
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            return summarize(latency.samples_ns).estimate
    return None


def within(value: float, factor: float) -> Estimate:
    """A time of a clock that is right within a factor, which is its error."""
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
