"""What a log's number means: records that a terminal or a JSON document can show."""

from dataclasses import dataclass
from typing import Literal

How = Literal["read", "inferred", "assumed"]


@dataclass(frozen=True)
class Statement:
    """One thing known of the configuration, and how."""

    what: str
    value: str
    how: How


@dataclass(frozen=True)
class RankSize:
    """What one rank printed."""

    rank: str
    tokens: int | None
    available_gib: float | None


@dataclass(frozen=True)
class Split:
    """One request of full context, in the engine's units (blocks, full tokens).

    Attributes:
        context: For its tokens.
        fixed: For windows and states in steady decode.
        in_flight: On top, for tokens in flight.
        counted: What the engine divides by; the sum of the three.
        held: What it really takes in steady decode.
    """

    context: float
    fixed: float
    in_flight: float
    counted: float
    held: float


@dataclass(frozen=True)
class Fit:
    """Requests of one length that memory holds in steady decode."""

    context_tokens: int
    requests: int

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return self.context_tokens * self.requests


@dataclass(frozen=True)
class Change:
    """Another setting, and what would be printed with it."""

    what: str
    printed_tokens: int
    gain_tokens: int


@dataclass(frozen=True)
class Explanation:
    """A log explained.

    Attributes:
        source: The log.
        engine: Rules that give its numbers.
        seen_in_logs: Those rules were checked against published logs.
        exact: The rules give the log's own integers.
        title: The configuration in a line.
        ranks: What every rank printed, the smallest first; the smallest is explained.
        statements: The configuration, one thing at a time.
        candidates: Other configurations that agree with the log as well.
        printed_tokens: The log's number; None where the engine refused to start.
        shown_tokens: The same number, or what would stand there had it started.
        concurrency: Requests of full context, as the engine counts.
        context_tokens: Full context.
        in_flight_tokens: Tokens in flight.
        unit: ``block`` or ``full token``.
        units: How many there are.
        unit_bytes: Bytes of one.
        cache_bytes: Bytes of the memory they take.
        fixed_bytes: Of every request.
        in_flight_bytes: Of every request on top, reserved.
        bytes_per_token: Of context, padding included.
        padding_bytes_per_token: Of it, what alignment loses.
        split: One request in units.
        fits: What really fits.
        changes: What would alter the number most, the largest first.
        meaning: The number in sentences.
    """

    source: str
    engine: str
    seen_in_logs: bool
    exact: bool
    title: str
    ranks: tuple[RankSize, ...]
    statements: tuple[Statement, ...]
    candidates: tuple[str, ...]
    printed_tokens: int | None
    shown_tokens: int
    concurrency: float
    context_tokens: int
    in_flight_tokens: int
    unit: str
    units: int
    unit_bytes: float
    cache_bytes: int
    fixed_bytes: int
    in_flight_bytes: int
    bytes_per_token: float
    padding_bytes_per_token: float
    split: Split
    fits: tuple[Fit, ...]
    changes: tuple[Change, ...]
    meaning: tuple[str, ...]
