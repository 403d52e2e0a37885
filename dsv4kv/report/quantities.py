"""What a record measured, one by one: every operation and latency of every case and launch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsv4kv.measure.statistics import Estimate, estimate_rate, summarize
from dsv4kv.report.axes import axis_text
from dsv4kv.report.record import Case, RunRecord


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
    """

    quantity: Quantity
    launch: int
    samples_ns: Sequence[int]
    bytes: Sequence[int]
    virtual: bool = False

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
        """Mean size of a call: what tells other work from the same work; 0 for bookkeeping."""
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
    """How many times as long ``after`` takes, of two launches whose steps took turns.

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
            yield Measured(quantity, case.launch, latency.samples_ns, (), is_virtual(case))
