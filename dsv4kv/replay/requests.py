"""A replay's requests: when they come, and the grid on which their prompts share blocks."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from dsv4kv.config.replay import ArrivalSection
from dsv4kv.core.served import NEVER, Served
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.traces.request import IdRuns, Request, signed

KeysOf = Callable[[Served], list[int]]
"""The whole shared blocks of a request."""


def shared_tokens(trace_block_tokens: int, cache_block_tokens: int) -> int:
    """Tokens of a shared block: the larger of a trace's block and a cache's.

    Raises:
        ConfigError: Neither divides the other.
    """
    if not trace_block_tokens:
        return cache_block_tokens
    small, large = sorted((trace_block_tokens, cache_block_tokens))
    if large % small:
        raise ConfigError(
            f"cache.block_tokens is {cache_block_tokens} and an id of the trace covers "
            f"{trace_block_tokens} tokens: neither divides the other, so no whole block could "
            f"ever be found again; take a multiple of 128 that divides {trace_block_tokens} or "
            "is a multiple of it."
        )
    return large


def keys_on(tokens: int) -> KeysOf:
    """The keys of prompts in shared blocks of ``tokens``: the last id of every whole one."""

    def keys(served: Served) -> list[int]:
        ids = served.ids
        if not served.id_tokens or not len(ids):
            return []
        step = max(1, tokens // served.id_tokens)
        known = ids.array().tolist() if isinstance(ids, IdRuns) else signed(ids).tolist()
        return known[step - 1 :: step][: served.input_tokens // tokens]

    return keys


def begin_serving(
    number: int, request: Request, arrival_s: float, keys: KeysOf, longest_output: int | None
) -> Served:
    """A request as it comes; outputs are cut to ``longest_output`` tokens."""
    output = request.output_tokens
    return Served(
        number=number,
        arrival_s=arrival_s,
        input_tokens=request.input_tokens,
        output_tokens=output if longest_output is None else min(output, longest_output),
        find_keys=keys,
        ids=request.prefix_hashes,
        id_tokens=request.hash_block_tokens,
    )


class Arrivals:
    """Hands out requests when they have come."""

    def __init__(
        self,
        requests: Sequence[Request],
        section: ArrivalSection,
        keys: KeysOf,
        client_s: float = 0.0,
    ) -> None:
        """``keys`` names the blocks of a prompt; raises ``TraceError`` for a wrong order.

        With closed arrivals a request comes ``client_s`` after the answer that it waited for.
        """
        self._closed = section.arrivals == "closed"
        if not self._closed:
            check_order(requests)
        self._requests, self._total = requests, len(requests)
        self._section, self._keys = section, keys
        self._first_s = requests[0].arrival_s if requests else 0.0
        self._next = 0
        self._client_s, self._coming_s = client_s, deque[float]()

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""
        if self._closed:
            return self._coming_s[0] if self._coming_s else NEVER
        if self._next == self._total:
            return NEVER
        return self._when(self._requests[self._next])

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, with ``in_flight`` others unfinished."""
        left = self._total - self._next
        if not left:
            self._requests = ()  # they are many, and may be freed
            return None
        request, section = self._requests[self._next], self._section
        if self._closed:  # sent for every one fewer than ``concurrency``
            wanted = min(left, section.concurrency - in_flight)
            self._coming_s.extend([now_s + self._client_s] * (wanted - len(self._coming_s)))
            if self.next_s > now_s:
                return None
            arrival_s = self._coming_s.popleft()
        else:
            arrival_s = self._when(request)
            if arrival_s > now_s:
                return None
        self._next += 1
        longest = section.max_output_tokens
        return begin_serving(self._next - 1, request, arrival_s, self._keys, longest)

    def _when(self, request: Request) -> float:
        return (request.arrival_s - self._first_s) / self._section.speed


def check_order(requests: Sequence[Request]) -> None:
    """Refuse a trace whose clock runs backwards; raises ``TraceError``."""
    for number, (before, after) in enumerate(pairwise(requests), start=2):
        if after.arrival_s < before.arrival_s:
            raise TraceError(
                f"request {number:,} of the trace arrives at {after.arrival_s:g} s, the one "
                f"before it at {before.arrival_s:g} s: the clock runs backwards. Sort the trace "
                "by time, or leave its times aside with workload.arrivals=closed."
            )
