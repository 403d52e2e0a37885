"""What a trace file does not say itself."""

from dataclasses import dataclass
from typing import Literal

TimeUnit = Literal["s", "ms", "us", "ns"]
UNITS_PER_SECOND: dict[TimeUnit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class TimedFields:
    """Names of the fields of a ``timed`` trace; ``ids`` may be missing from its lines.

    Attributes:
        time: Arrival.
        input: Prompt length in tokens.
        output: Generated length in tokens.
        ids: Block ids of the prompt.
    """

    time: str = "timestamp"
    input: str = "input_length"
    output: str = "output_length"
    ids: str = "hash_ids"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the formats that need them.

    Attributes:
        fields: Names in a ``timed`` trace.
        time_unit: Unit of its arrivals.
        id_tokens: Tokens that one of its ids stands for; None if it has no ids.
        stagger_s: Seconds from the start of one conversation of a ``weka`` folder to the next.
        any_order: Take requests that arrive before the one above them: their times do not count,
            or they are yet to be sorted.
    """

    fields: TimedFields = TimedFields()
    time_unit: TimeUnit = "s"
    id_tokens: int | None = None
    stagger_s: float = 0.0
    any_order: bool = False


DEFAULTS = ReadOptions()
