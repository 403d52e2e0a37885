"""When measuring begins and ends, on a machine whose speed the test decides."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench import device as protocol
from dsv4kv.bench.serve import executor as module
from dsv4kv.bench.serve.executor import Recorder

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
        rules: protocol.Rules = protocol.RULES,
        throttled: protocol.Throttled | None = None,
    ) -> protocol.Timing:
        return protocol.measure(
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
    assert 3 * S <= timing.started_ns < 4 * S


def test_sampling_waits_until_the_clock_is_flat() -> None:
    falling = Machine(lambda s: 1 * MS * (1 + max(0.0, 6 - s) / 10))
    timing = falling.measure()
    assert 6 * S <= timing.started_ns <= 9 * S
    assert set(timing.samples_ns) == {1 * MS}


def test_too_much_noise_ends_after_ten_seconds_and_is_told() -> None:
    timing = Machine(noisy(1 * MS, 0.8)).measure()
    assert not timing.converged
    assert 10 * S <= timing.ended_ns - timing.started_ns < 11 * S


def test_drift_is_not_taken_for_knowledge() -> None:
    drifting = Machine(lambda s: 1 * MS * (1 + max(0.0, s - 3) / 20)).measure()
    assert not drifting.converged


@given(st.integers(1, 50_000_000))
def test_work_is_repeated_until_it_lasts_a_millisecond(unit_ns: int) -> None:
    rounds = protocol.rounds_for(Machine(lambda _: unit_ns).take, protocol.RULES, 1 << 20)
    assert rounds == 1 or (rounds - 1) * unit_ns < protocol.RULES.unit_ns
    assert rounds * unit_ns >= protocol.RULES.unit_ns


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


LEAST_NS = protocol.RULES.least_total_ns


@dataclass
class Clock:
    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


def test_where_not_all_can_have_the_least_the_first_have_it() -> None:
    clock = Clock()
    budget = protocol.Budget(2.5, clock)
    shares = []
    for left in (4, 3, 2, 1):
        shares.append(budget.share_ns(left, S))
        clock.now_ns += shares[-1] or 0
    assert shares == [S, S, None, None]


@given(total_ms=st.integers(1, 30_000))
def test_rules_within_a_time_end_in_it(total_ms: int) -> None:
    rules = protocol.RULES.within(total_ms * 1_000_000)
    assert rules.most_warmup_ns + rules.most_ns <= total_ms * 1_000_000
    assert rules.warmup_ns <= rules.most_warmup_ns


@pytest.mark.parametrize("seconds", [0.7, 5, 60])
def test_figures_of_a_gpu_end_with_their_budget(seconds: float) -> None:
    """Rows that never converge take all they may, and one batch each beyond it."""
    clock, batch_ns = Clock(), protocol.RULES.batch_ns
    budget = protocol.Budget(seconds, clock)
    for left in range(30, 0, -1):
        share_ns = budget.share_ns(left, LEAST_NS)
        clock.now_ns += 0 if share_ns is None else share_ns + batch_ns
    assert clock.now_ns <= seconds * S + batch_ns + LEAST_NS


def test_the_polling_process_starts_with_little() -> None:
    code = (
        "import sys, dsv4kv.bench.polling\n"
        "print(*{'torch', 'numpy', 'pydantic', 'pynvml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6))))
def test_the_clock_shows_all_time_but_the_excluded(spans: list[tuple[bool, int]]) -> None:
    """Which is excluded even when the work fails."""
    with pytest.MonkeyPatch.context() as patch:
        now = [0]
        patch.setattr(module, "perf_counter_ns", lambda: now[0])
        recorder = Recorder()
        for excluded, duration in spans:
            within = recorder.excluded() if excluded else nullcontext()
            with suppress(KeyboardInterrupt), within:
                now[0] += duration
                raise KeyboardInterrupt
        assert recorder.now_ns() == sum(ns for excluded, ns in spans if not excluded)
