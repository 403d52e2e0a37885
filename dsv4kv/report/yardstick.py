"""What a run holds its rates against: plain copies on the same machine, in the same run."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.report.record import Case

COPIES = ("copy", "torch_copy")
"""Peaks that read and write as much: with our own accesses, and with torch's."""


@dataclass(frozen=True)
class Yardstick:
    """Plain memory traffic.

    Attributes:
        name: ``memcpy``, or on a GPU ``copy``, ``torch_copy``, ``read`` or ``write``.
        bytes: Bytes read plus bytes written by one call.
        samples_ns: Duration of every call.
        throttled: Calls left out, as the GPU was throttled meanwhile.
    """

    name: str
    bytes: int
    samples_ns: Sequence[int]
    throttled: int = 0

    @property
    def rate(self) -> Estimate | None:
        """GB/s."""
        return estimate_rate([self.bytes] * len(self.samples_ns), self.samples_ns)


def yardsticks(case: Case) -> list[Yardstick]:
    """Those of a case; the first, the fastest copy, is the one that percentages are of."""
    if case.memcpy:
        return [Yardstick("memcpy", case.memcpy.bytes, case.memcpy.samples_ns)]
    found = [
        Yardstick(peak.name, peak.bytes, peak.samples_ns, peak.throttled) for peak in case.peaks
    ]
    return sorted(found, key=_order)


def _order(yardstick: Yardstick) -> tuple[bool, float]:
    is_copy, rate = yardstick.name in COPIES, yardstick.rate
    return not is_copy, -rate.value if rate and is_copy else 0.0
