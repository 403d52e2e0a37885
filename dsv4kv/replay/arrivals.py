"""Requests as they come: by the trace's clock, or one for one that leaves."""

from collections.abc import Sequence
from functools import partial

from dsv4kv.config.replay import ArrivalSection
from dsv4kv.replay.served import Served
from dsv4kv.replay.sharing import KeysOf, check_order
from dsv4kv.workload.request import Request

NEVER = float("inf")


class Arrivals:
    """Hands out requests when they have come; memory is that of the trace."""

    def __init__(self, requests: Sequence[Request], section: ArrivalSection, keys: KeysOf) -> None:
        """``keys`` names the blocks of a prompt; raises ``TraceError`` for a wrong order."""
        self._closed = section.arrivals == "closed"
        if not self._closed:
            check_order(requests)
        self._requests, self._section, self._keys = requests, section, keys
        self._first_s = requests[0].arrival_s if requests else 0.0
        self._next = 0

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""
        if self._closed or self._next == len(self._requests):
            return NEVER
        return self._when(self._requests[self._next])

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, where so many are in flight."""
        if self._next == len(self._requests):
            return None
        request = self._requests[self._next]
        if self._closed:
            if in_flight >= self._section.concurrency:
                return None
        elif self._when(request) > now_s:
            return None
        self._next += 1
        return self._serve(request, now_s)

    def _when(self, request: Request) -> float:
        return (request.arrival_s - self._first_s) / self._section.speed

    def _serve(self, request: Request, now_s: float) -> Served:
        output = request.output_tokens
        if self._section.max_output_tokens is not None:
            output = min(output, self._section.max_output_tokens)
        return Served(
            number=self._next - 1,
            arrival_s=now_s if self._closed else self._when(request),
            input_tokens=request.input_tokens,
            output_tokens=output,
            find_keys=partial(self._keys, self._next - 1, request),
            ids=request.prefix_hashes,
            id_tokens=request.hash_block_tokens,
            prompt_tokens=request.input_tokens,
        )
