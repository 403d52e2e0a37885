"""Replays on a device whose clock, queue and sleep the test sees."""

from dataclasses import dataclass, field

import pytest

from dsv4kv.bench.protocol import MOST_ROUNDS, ReplayTimer, Rules
from dsv4kv.bench.recorder import Event

MS = 1_000_000
QUICK = Rules(
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


@dataclass
class Device:
    """Does at once what it is asked for, in ``replay_ns``; the host's clock is the device's."""

    replay_ns: int = MS
    now_ns: int = 0
    waits: int = 0
    log: list[str] = field(default_factory=list)

    def make_event(self) -> "Moment":
        return Moment(self)

    def sleep(self, cycles: int) -> None:
        assert cycles > 1_000_000  # half a millisecond at least
        self.log.append("sleep")

    def replay(self) -> None:
        self.log.append("replay")
        self.now_ns += self.replay_ns

    def timer(self, rules: Rules = QUICK) -> ReplayTimer:
        return ReplayTimer(self.make_event, self.sleep, rules, lambda: self.now_ns)

    def batches(self) -> list[str]:
        """What was launched between two waits: s, r and e for sleep, replay and event."""
        text = "".join({"record": "e", "wait": " "}.get(word, word[0]) for word in self.log)
        return text.split()


@dataclass
class Moment:
    device: Device
    at_ns: int = -1
    waited: bool = False

    def record(self) -> None:
        self.device.log.append("record")
        self.at_ns = self.device.now_ns

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.log.append("wait")

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, Moment)
        assert self.device.log[-1] == "wait", "read before the device was done"
        return (end.at_ns - self.at_ns) / 1e6


def test_a_sample_is_one_call_of_a_replay() -> None:
    device = Device(replay_ns=2 * MS)
    assert set(device.timer().time(device.replay, 4).samples_ns) == {MS // 2}


def test_every_replay_has_a_pair_of_events_behind_one_sleep_a_batch() -> None:
    device = Device()
    device.timer().time(device.replay, 1)
    assert {batch[0] for batch in device.batches()} == {"s"}
    assert {batch[1:].replace("ere", "") for batch in device.batches()} == {""}
    assert max(len(batch) for batch in device.batches()) == 1 + 3 * 4  # of 4 ms


def test_the_device_is_warmed_up_fully_once_and_briefly_from_then_on() -> None:
    device = Device()
    timer = device.timer()
    first, second = (timer.time(device.replay, 1) for _ in range(2))
    assert first.warmup_ns >= QUICK.warmup_ns > second.warmup_ns


@pytest.mark.parametrize(
    ("replay_ns", "rounds"), [(3_000, 334), (400_000, 3), (2 * MS, 1), (10, MOST_ROUNDS)]
)
def test_work_is_captured_as_often_as_makes_a_millisecond(replay_ns: int, rounds: int) -> None:
    device = Device(replay_ns)
    assert device.timer().rounds_for(device.replay) == rounds
