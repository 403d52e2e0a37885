"""What a run holds its rates against: plain copies on the same machine, in the same run."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.report.record import Case


@dataclass(frozen=True)
class Yardstick:
    """Plain memory traffic.

    Attributes:
        name: ``memcpy``, or on a GPU ``copy``, ``read`` or ``write``.
        bytes: Bytes read plus bytes written by one call.
        samples_ns: Duration of every call.
    """

    name: str
    bytes: int
    samples_ns: Sequence[int]

    @property
    def rate(self) -> Estimate | None:
        """GB/s."""
        return estimate_rate([self.bytes] * len(self.samples_ns), self.samples_ns)


def yardsticks(case: Case) -> list[Yardstick]:
    """Those of a case; the first is the one that percentages are of."""
    if case.memcpy:
        return [Yardstick("memcpy", case.memcpy.bytes, case.memcpy.samples_ns)]
    return [Yardstick(peak.name, peak.bytes, peak.samples_ns) for peak in case.peaks]
