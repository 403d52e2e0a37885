"""What a run of the systems found: a row for each quantity, and the checks behind it."""

from dataclasses import dataclass, field
from typing import Literal

from dsv4kv.measure.statistics import Estimate, divide

Unit = Literal["ns", "B", "tokens", "blocks", "requests", "outputs"]


@dataclass(frozen=True)
class Row:
    """One quantity of one system.

    Attributes:
        system: ``pools``, ``slots`` or ``blocks``.
        quantity: What it is.
        unit: Of both numbers.
        ours: The package's.
        plain: The plain re-statement's; None where it has no such thing.
    """

    system: str
    quantity: str
    unit: Unit
    ours: Estimate
    plain: Estimate | None = None

    @property
    def share(self) -> Estimate | None:
        """Ours as a share of the plain one's; None without one."""
        return divide(self.ours, self.plain) if self.plain and self.plain.value else None


@dataclass
class Checks:
    """Comparisons with the reference.

    Attributes:
        passed: Comparisons made, by what was compared.
        failures: A sentence for each that differed.
    """

    passed: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def check(self, what: str, right: bool, sentence: str, count: int = 1) -> None:
        """Count ``count`` comparisons; keep the sentence if they are not right."""
        self.passed[what] = self.passed.get(what, 0) + count
        if not right:
            self.failures.append(sentence)


@dataclass(frozen=True)
class Outcome:
    """What running one system gave."""

    system: str
    rows: list[Row]
    checks: Checks


def exact(value: float) -> Estimate:
    """A number that was counted."""
    return Estimate(float(value), 0.0)
