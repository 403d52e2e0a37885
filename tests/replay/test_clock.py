"""Virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.replay.clock import Rates, VirtualClock, Work

RATES = Rates(bytes_per_s=3e12, operations_per_s=7e14, overhead_s=1e-3, source="")
WORKS = st.builds(
    Work,
    steps=st.integers(0, 5),
    weight_bytes=st.integers(0, 10**15),
    update_bytes=st.integers(0, 10**12),
    score_bytes=st.integers(0, 10**12),
    select_bytes=st.integers(0, 10**12),
    attend_bytes=st.integers(0, 10**12),
    gather_bytes=st.integers(0, 10**12),
    copy_bytes=st.integers(0, 10**12),
    operations=st.integers(0, 10**18),
)


@given(st.lists(WORKS, max_size=8), st.data())
def test_time_does_not_depend_on_how_work_is_grouped(
    works: list[Work], data: st.DataObject
) -> None:
    one_by_one, at_once = VirtualClock(RATES), VirtualClock(RATES)
    for work in works:
        one_by_one.work(work)
    at_once.work(sum(works, Work()))
    assert one_by_one.now_s == at_once.now_s == VirtualClock(RATES).after(sum(works, Work()))


@given(st.lists(st.one_of(WORKS, st.floats(0, 1e6)), max_size=12))
def test_time_never_runs_backwards(events: list[Work | float]) -> None:
    clock, before_s = VirtualClock(RATES), 0.0
    for event in events:
        if isinstance(event, Work):
            clock.work(event)
        else:
            clock.wait_until(event)
            assert clock.now_s >= event
        assert clock.now_s >= before_s
        before_s = clock.now_s


def test_waiting_for_what_is_past_changes_nothing() -> None:
    clock = VirtualClock(RATES)
    clock.work(Work(steps=10))
    clock.wait_until(0.001)
    assert (clock.now_s, clock.idle_s) == (10 * RATES.overhead_s, 0.0)


def test_a_step_takes_overhead_and_bytes_and_arithmetic() -> None:
    clock = VirtualClock(RATES)
    each = 10**11
    clock.work(Work(1, 10**12, each, each, each, each, each, operations=7 * 10**14))
    assert clock.now_s == pytest.approx(1e-3 + 1.5e12 / 3e12 + 1.0)
