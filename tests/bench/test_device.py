"""When measuring begins and ends, on machines and devices whose speed the test decides."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench import device as protocol
from dsv4kv.bench.device import CallTimer, CudaDevice, Event, Rules
from dsv4kv.bench.serve import executor as module
from dsv4kv.bench.serve.executor import Recorder
from tests.gpu_twin import TwinGpu, twin_device

S, MS = 1_000_000_000, 1_000_000
Speed = Callable[[float], float]
"""Nanoseconds of a unit by the seconds that have passed."""


@dataclass
class Machine:
    """Time passes only while it works."""

    unit_ns: Speed
    now_ns: int = 0

    def take(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(max(1, round(self.unit_ns(self.now_ns / S))))
            self.now_ns += found[-1]
        return found

    def measure(self, throttled: protocol.Throttled | None = None) -> protocol.Timing:
        clock = lambda: self.now_ns  # noqa: E731
        how: dict[str, Any] = {"was_idle": True, "clock_ns": clock, "throttled": throttled}
        return protocol.measure(self.take, 1, protocol.RULES, **how)


def test_a_machine_that_was_idle_is_warmed_up_for_three_seconds_at_least() -> None:
    timing = Machine(lambda _: 1 * MS).measure()
    assert 3 * S <= timing.started_ns < 4 * S


def test_too_much_noise_ends_after_ten_seconds_and_is_told() -> None:
    draw = Random(0)
    timing = Machine(lambda _: MS * draw.lognormvariate(0, 0.8)).measure()
    assert not timing.converged
    assert 10 * S <= timing.ended_ns - timing.started_ns < 11 * S


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


def overlaps(first_ns: int, last_ns: int, started_ns: int, ended_ns: int) -> bool:
    return started_ns < last_ns and first_ns < ended_ns


@given(total_ms=st.integers(1, 30_000))
def test_rules_within_a_time_end_in_it(total_ms: int) -> None:
    rules = protocol.RULES.within(total_ms * 1_000_000)
    assert rules.most_warmup_ns + rules.most_ns <= total_ms * 1_000_000
    assert rules.warmup_ns <= rules.most_warmup_ns


@pytest.mark.parametrize("seconds", [0.7, 5, 60])
def test_figures_of_a_gpu_end_with_their_budget(seconds: float) -> None:
    """Rows that never converge take all they may, and one batch each beyond it."""
    now_ns, batch_ns, least_ns = [0], protocol.RULES.batch_ns, protocol.RULES.least_total_ns
    timer = CallTimer(twin_device(TwinGpu()), seconds=seconds, clock_ns=lambda: now_ns[0])
    for left in range(30, 0, -1):
        share_ns = timer.share_ns(left)
        now_ns[0] += 0 if share_ns is None else share_ns + batch_ns
    assert now_ns[0] <= seconds * S + batch_ns + least_ns


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


QUICK = Rules(
    unit_ns=0,
    warmup_ns=3 * MS,
    window_ns=MS,
    rewarm_window_ns=MS,
    idle_ns=5 * MS,
    most_warmup_ns=10 * MS,
    batch_ns=4 * MS,
    least_ns=MS,
    fewest_samples=6,
    most_ns=50 * MS,
)


class Device:
    """Does at once what it is asked for, in a millisecond; the host's clock is the device's."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.log = ""  # s, r, e and a space for a sleep, a replay, an event and a wait
        capture = lambda: lambda _run: self.replay  # noqa: E731
        device = CudaDevice(torch.device("cpu"), "", 0, 0, lambda: Moment(self), capture)
        self.timer = CallTimer(device, rules=QUICK, sleep=self.sleep, clock_ns=lambda: self.now_ns)

    def sleep(self, cycles: int) -> None:
        assert cycles > 1_000_000  # half a millisecond at least
        self.log += "s"

    def replay(self) -> None:
        self.log += "r"
        self.now_ns += MS

    def measure(self) -> protocol.Timing:
        return self.timer.measure([lambda: None], "call")


@dataclass
class Moment:
    device: Device
    at_ns: int = -1

    def record(self) -> None:
        self.device.log += "e"
        self.at_ns = self.device.now_ns

    def synchronize(self) -> None:
        self.device.log += " "

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, Moment)
        assert self.device.log[-1] == " ", "read before the device was done"
        return (end.at_ns - self.at_ns) / 1e6


def test_every_replay_has_a_pair_of_events_behind_one_sleep_a_batch() -> None:
    device = Device()
    device.measure()
    batches = device.log.split()
    assert {batch[0] for batch in batches} == {"s"}
    assert {batch[1:].replace("ere", "") for batch in batches} == {""}
    assert max(map(len, batches)) == 1 + 3 * 4  # of 4 ms


def test_the_device_is_warmed_up_fully_once_and_briefly_from_then_on() -> None:
    device = Device()
    first, second = device.measure(), device.measure()
    assert first.started_ns >= QUICK.warmup_ns > second.started_ns - first.ended_ns
