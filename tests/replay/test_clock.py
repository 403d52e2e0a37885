"""Virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.clock import Rates, VirtualClock
from dsv4kv.core.served import Served
from tests.replay.scenes import replay, request

RATES = Rates(bytes_per_s=3e12, operations_per_s=7e14, overhead_s=1e-3, source="")
MADE = replay([request([1, 2, 3], output=900)])

SERVED = Served(0, 0.0, 1, 1, lambda _: [], (), 0)


def clock() -> VirtualClock:
    return VirtualClock(MADE.scheduler.clock._tables, RATES, None)


def step(clock: VirtualClock, lengths: list[int]) -> None:
    clock.verify(lengths, [1] * len(lengths))
    clock.step(len(lengths), len(lengths), sum(lengths) + len(lengths), ())


STEPS = st.lists(st.integers(1, 900), max_size=4)


@given(st.lists(st.one_of(STEPS, st.integers(0, 10**15), st.floats(0, 1e6)), max_size=12))
def test_time_never_runs_backwards_and_busy_time_is_that_of_the_work(
    events: list[list[int] | int | float],
) -> None:
    made, before_s = clock(), 0.0
    for event in events:
        if isinstance(event, list):
            step(made, event)
        elif isinstance(event, int):
            made.copy(event)
        else:
            made.wait_until(event)
            assert made.now_s >= event
        assert made.now_s >= before_s
        before_s = made.now_s
        assert made.busy_s == RATES.duration_s(made.done)


def test_asking_how_long_a_prompt_would_take_takes_no_time() -> None:
    made, other = clock(), clock()
    step(made, [5])
    before = made.done, made.now_s
    took_s = made.prompt_s(100, 700, 256)
    assert (made.done, made.now_s) == before
    for span in ((100, 356), (356, 612), (612, 700)):
        other.step(0, 0, 0, [(SERVED, span)])
    assert took_s == pytest.approx(other.busy_s)
