"""Virtual time, worked out from whole numbers of bytes, operations and steps.

Time is a function of the work done so far, never a sum of rounded times: a stretch of steps ends
at the same instant whether it was taken at once or step by step.
"""

import math
from dataclasses import dataclass

from dsv4kv.replay.rates import Rates


@dataclass(frozen=True, slots=True)
class Work:
    """Work of steps, in whole numbers.

    Attributes:
        steps: Steps.
        weight_bytes: Weights read.
        update_bytes: Moved to bring tokens into the cache.
        gather_bytes: Moved to read the cache.
        copy_bytes: Read and written by checkpoints.
        operations: Multiplications and additions.
    """

    steps: int = 0
    weight_bytes: int = 0
    update_bytes: int = 0
    gather_bytes: int = 0
    copy_bytes: int = 0
    operations: int = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache moves."""
        return self.update_bytes + self.gather_bytes + self.copy_bytes

    @property
    def moved_bytes(self) -> int:
        """All bytes."""
        return self.weight_bytes + self.cache_bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.steps + other.steps,
            self.weight_bytes + other.weight_bytes,
            self.update_bytes + other.update_bytes,
            self.gather_bytes + other.gather_bytes,
            self.copy_bytes + other.copy_bytes,
            self.operations + other.operations,
        )


class VirtualClock:
    """Tells the time; it only ever goes forward.

    Attributes:
        done: Work done so far.
        idle_s: Time in which there was none.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self.done = Work()
        self.idle_s = 0.0
        self._busy_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.idle_s + self._busy_s

    def after(self, work: Work) -> float:
        """The time at which work that begins now would end."""
        return self.idle_s + self._duration(self.done + work)

    def work(self, work: Work) -> None:
        """Do work."""
        self.done = self.done + work
        self._busy_s = self._duration(self.done)

    def wait_until(self, time_s: float) -> None:
        """Do nothing until then; nothing happens where that is past."""
        self.idle_s = max(self.idle_s, time_s - self._busy_s)
        while self.now_s < time_s:  # the sum may fall short of it by a rounding
            self.idle_s = math.nextafter(self.idle_s, math.inf)

    def _duration(self, work: Work) -> float:
        rates = self._rates
        return (
            work.steps * rates.overhead_s
            + work.moved_bytes / rates.bytes_per_s
            + work.operations / rates.operations_per_s
        )
