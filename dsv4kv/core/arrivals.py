"""When requests come to a server."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from dsv4kv.core.served import NEVER, Served


class Source(Protocol):
    """Where a scheduler gets its requests from."""

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, with ``in_flight`` others unfinished."""


class Arrivals:
    """Requests at given times, or one for every one fewer in flight than ``concurrency``."""

    def __init__(
        self,
        begin: Callable[[int, float], Served],
        count: int,
        times_s: list[float],
        concurrency: int,
        client_s: float,
    ) -> None:
        """``concurrency`` 0: by times; else ``client_s`` after the answer that one waited for."""
        self._begin, self._count, self._times_s = begin, count, times_s
        self._concurrency, self._client_s = concurrency, client_s
        self._next = 0
        self._coming_s: deque[float] = deque()

    @property
    def next_s(self) -> float:
        if self._concurrency:
            return self._coming_s[0] if self._coming_s else NEVER
        return self._times_s[self._next] if self._next < self._count else NEVER

    def take(self, now_s: float, in_flight: int) -> Served | None:
        if self._concurrency:
            wanted = min(self._count - self._next, self._concurrency - in_flight)
            self._coming_s.extend([now_s + self._client_s] * (wanted - len(self._coming_s)))
        arrival_s = self.next_s
        if arrival_s > now_s or self._next == self._count:
            return None
        if self._concurrency:
            self._coming_s.popleft()
        self._next += 1
        return self._begin(self._next - 1, arrival_s)
