"""A budget is shared out as measurements come, and never overdrawn by more than the last one."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.protocol import RULES, Budget

S = 1_000_000_000
LEAST_NS = RULES.least_total_ns


@dataclass
class Clock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


def test_what_one_measurement_leaves_the_others_have() -> None:
    clock = Clock()
    budget = Budget(10, clock)
    assert budget.share_ns(5, S) == 2 * S
    clock.now_ns += S  # it needed half of that
    assert budget.share_ns(4, S) == 9 * S // 4


def test_where_not_all_can_have_the_least_the_first_have_it() -> None:
    clock = Clock()
    budget = Budget(2.5, clock)
    shares = []
    for left in (4, 3, 2, 1):
        shares.append(budget.share_ns(left, S))
        clock.now_ns += shares[-1] or 0
    assert shares == [S, S, None, None]


def test_without_a_number_of_seconds_there_is_time_for_everything() -> None:
    share_ns = Budget(None, Clock(10**15)).share_ns(1_000, S)
    assert share_ns is not None
    assert RULES.within(share_ns) == RULES


@given(total_ms=st.integers(1, 30_000))
def test_rules_within_a_time_end_in_it(total_ms: int) -> None:
    rules = RULES.within(total_ms * 1_000_000)
    assert rules.most_warmup_ns + rules.most_ns <= total_ms * 1_000_000
    assert rules.warmup_ns <= rules.most_warmup_ns


def test_rules_within_the_least_time_leave_enough_to_sample() -> None:
    rules = RULES.within(LEAST_NS)
    assert rules.most_ns >= rules.least_ns
    assert rules.most_warmup_ns >= 2 * rules.rewarm_window_ns


@pytest.mark.parametrize("seconds", [0.7, 5, 60])
def test_figures_of_a_gpu_end_with_their_budget(seconds: float) -> None:
    """Rows that never converge take all they may, and one batch each beyond it."""
    clock, batch_ns = Clock(), RULES.batch_ns
    budget = Budget(seconds, clock)
    for left in range(30, 0, -1):
        share_ns = budget.share_ns(left, LEAST_NS)
        clock.now_ns += 0 if share_ns is None else share_ns + batch_ns
    assert clock.now_ns <= seconds * S + batch_ns + LEAST_NS
