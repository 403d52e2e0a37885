"""Times work on the CPU: repeated until a sample is long enough for the clock."""

from collections.abc import Callable
from time import perf_counter_ns

from dsv4kv.measure import protocol
from dsv4kv.measure.protocol import Clock, Rules, Timing

_MOST_ROUNDS = 1 << 20


def time_calls(
    call: Callable[[], None], rules: Rules | None = None, clock_ns: Clock = perf_counter_ns
) -> Timing:
    """Time a call by the rules that hold on a GPU too; a sample is the mean of equal calls."""
    rules = rules or protocol.RULES

    def take(count: int, rounds: int) -> list[int]:
        return [_repeat(call, rounds, clock_ns) for _ in range(count)]

    rounds = protocol.rounds_for(lambda n: take(n, 1), rules, _MOST_ROUNDS)
    return protocol.measure(lambda n: take(n, rounds), rounds, rules, clock_ns=clock_ns)


def _repeat(call: Callable[[], None], rounds: int, clock_ns: Clock) -> int:
    started_ns = clock_ns()
    for _ in range(rounds):
        call()
    return clock_ns() - started_ns
