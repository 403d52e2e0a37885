"""When measuring begins and ends, on a machine whose speed the test decides."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.protocol import Rules, Throttled, Timing, is_known, measure, rounds_for

RULES = Rules()
S, MS = 1_000_000_000, 1_000_000
Speed = Callable[[float], float]
"""Nanoseconds of a unit by the seconds that have passed."""


@dataclass
class Machine:
    """Time passes only while it works."""

    unit_ns: Speed
    now_ns: int = 0
    taken: list[int] = field(default_factory=list)

    def take(self, count: int) -> list[int]:
        self.taken.append(count)
        found = []
        for _ in range(count):
            found.append(max(1, round(self.unit_ns(self.now_ns / S))))
            self.now_ns += found[-1]
        return found

    def measure(
        self,
        calls: int = 1,
        *,
        was_idle: bool = True,
        rules: Rules = RULES,
        throttled: Throttled | None = None,
    ) -> Timing:
        return measure(
            self.take,
            calls,
            rules,
            was_idle=was_idle,
            clock_ns=lambda: self.now_ns,
            throttled=throttled,
        )


def noisy(mean_ns: float, sigma: float, seed: int = 0) -> Speed:
    random = Random(seed)
    return lambda _: mean_ns * random.lognormvariate(0, sigma)


def test_a_machine_that_was_idle_is_warmed_up_for_three_seconds_at_least() -> None:
    timing = Machine(lambda _: 1 * MS).measure()
    assert 3 * S <= timing.warmup_ns < 4 * S


def test_a_machine_that_has_just_worked_needs_two_short_windows() -> None:
    timing = Machine(lambda _: 1 * MS).measure(was_idle=False)
    assert 2 * RULES.rewarm_window_ns <= timing.warmup_ns < 1 * S


def test_sampling_waits_until_the_clock_is_flat() -> None:
    falling = Machine(lambda s: 1 * MS * (1 + max(0.0, 6 - s) / 10))
    timing = falling.measure()
    assert 6 * S <= timing.started_ns <= 9 * S
    assert set(timing.samples_ns) == {1 * MS}


def test_a_machine_that_never_settles_is_sampled_after_ten_seconds() -> None:
    restless = Machine(lambda s: 1 * MS * (2 if int(s) % 2 else 1))
    assert 10 * S <= restless.measure().warmup_ns < 11 * S


def test_steady_work_is_sampled_until_there_is_enough_of_it() -> None:
    timing = Machine(lambda _: 1 * MS).measure()
    assert timing.converged
    assert 0.5 * S <= timing.ended_ns - timing.started_ns < 0.7 * S
    slow = Machine(lambda _: 50 * MS).measure()
    assert slow.converged
    assert RULES.fewest_samples <= len(slow.samples_ns) <= RULES.fewest_samples + 2


def test_noise_takes_as_many_samples_as_it_needs() -> None:
    some = Machine(noisy(1 * MS, 0.02)).measure()
    more = Machine(noisy(1 * MS, 0.10)).measure()
    assert some.converged
    assert more.converged
    assert 400 < len(some.samples_ns) < len(more.samples_ns)


def test_too_much_noise_ends_after_ten_seconds_and_is_told() -> None:
    timing = Machine(noisy(1 * MS, 0.8)).measure()
    assert not timing.converged
    assert 10 * S <= timing.ended_ns - timing.started_ns < 11 * S


def test_work_too_slow_for_thirty_samples_ends_as_well() -> None:
    timing = Machine(lambda _: 2 * S).measure()
    assert not timing.converged
    assert len(timing.samples_ns) == 5


def test_drift_is_not_taken_for_knowledge() -> None:
    drifting = Machine(lambda s: 1 * MS * (1 + max(0.0, s - 3) / 20)).measure()
    assert not drifting.converged


def test_a_clock_that_steps_down_is_not_taken_for_knowledge() -> None:
    samples = [1_000_000] * 300 + [1_050_000] * 299
    assert not is_known(samples, RULES)
    assert is_known(samples[:300], RULES)


def test_fewer_than_six_samples_are_known_to_no_finite_precision() -> None:
    assert not is_known([5, 5, 5, 5, 5], RULES)
    assert is_known([5, 5], Rules(half_width=math.inf))


def test_a_sample_is_one_of_the_calls_of_a_unit() -> None:
    timing = Machine(lambda _: 1 * MS).measure(calls=250)
    assert set(timing.samples_ns) == {4_000}
    assert timing.calls == 250


@pytest.mark.parametrize("unit_ns", [20_000, 1 * MS, 60 * MS, 400 * MS])
def test_nobody_waits_long_before_the_samples_are_looked_at(unit_ns: int) -> None:
    machine = Machine(lambda _: unit_ns)
    machine.measure()
    assert max(machine.taken) * unit_ns <= max(RULES.batch_ns, unit_ns) + unit_ns
    assert max(machine.taken) <= 256  # of a device's queue


@given(st.integers(1, 50_000_000))
def test_work_is_repeated_until_it_lasts_a_millisecond(unit_ns: int) -> None:
    rounds = rounds_for(Machine(lambda _: unit_ns).take, RULES, 1 << 20)
    assert rounds == 1 or (rounds - 1) * unit_ns < RULES.unit_ns
    assert rounds * unit_ns >= RULES.unit_ns


def test_the_first_unit_brings_code_and_does_not_count() -> None:
    machine = Machine(lambda s: 100_000 if s else 5 * MS)
    assert rounds_for(machine.take, RULES, 1 << 20) == 10


def test_work_is_not_repeated_more_often_than_it_can_be() -> None:
    assert rounds_for(Machine(lambda _: 10).take, RULES, 512) == 512


# ---- a device that is throttled -----------------------------------------------------------------


def test_samples_of_throttled_batches_are_left_out_and_counted() -> None:
    machine = Machine(lambda s: 2 * MS if 3.5 <= s < 3.7 else 1 * MS)
    slow = partial(overlaps, round(3.5 * S), round(3.7 * S))
    timing = machine.measure(throttled=slow)
    assert set(timing.samples_ns) == {1 * MS}
    assert 100 <= timing.throttled < 300  # a fifth of a second, and what was handed over with it
    assert timing.converged


def test_a_device_that_is_throttled_all_the_time_gives_no_samples() -> None:
    timing = Machine(lambda _: 1 * MS).measure(throttled=lambda *_: True)
    assert timing.samples_ns == []
    assert timing.throttled > 400
    assert not timing.converged


def overlaps(first_ns: int, last_ns: int, started_ns: int, ended_ns: int) -> bool:
    return started_ns < last_ns and first_ns < ended_ns
