"""What the recorder keeps, under a clock that the test moves."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure import recorder as module
from dsv4kv.measure.recorder import DeviceClock, Event, Recorder

Pass = Callable[[int], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let time pass, in nanoseconds."""
    now = [1_000]
    monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    def advance(ns: int) -> None:
        now[0] += ns

    return advance


def samples(recorder: Recorder) -> dict[tuple[str, str], tuple[list[int], list[int], list[int]]]:
    return {
        key: (each.ns.tolist(), each.entries.tolist(), each.bytes.tolist())
        for key, each in recorder.operations.items()
    }


def test_operations_are_kept_by_name_and_layer_type_with_their_work() -> None:
    recorder = Recorder()
    timed = [("flush", "csa", 30, 3, 300, 0), ("flush", "hca", 10, 1, 100, 0)]
    recorder.keep_all([("step", 50)], [*timed, ("flush", "csa", 40, 4, 400, 0)])
    assert samples(recorder) == {
        ("flush", "csa"): ([30, 40], [3, 4], [300, 400]),
        ("flush", "hca"): ([10], [1], [100]),
    }
    assert recorder.latencies["step"].tolist() == [50]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6))))
def test_the_clock_shows_all_time_but_the_excluded(spans: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now = [0]
        patch.setattr(module, "perf_counter_ns", lambda: now[0])
        recorder = Recorder()
        for excluded, duration in spans:
            if excluded:
                with recorder.excluded():
                    now[0] += duration
            else:
                now[0] += duration
        assert recorder.now_ns() == sum(ns for excluded, ns in spans if not excluded)


def test_time_is_excluded_even_when_the_work_fails(wait: Pass) -> None:
    recorder = Recorder()
    start = recorder.now_ns()

    def fail() -> None:
        wait(50)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), recorder.excluded():
        fail()
    assert recorder.now_ns() == start


@dataclass
class Device:
    """A clock in milliseconds, and whether the host has waited for it."""

    now_ms: float = 0.0
    waits: int = 0
    events: int = 0
    log: list[str] = field(default_factory=list)

    def make_event(self) -> "Moment":
        self.events += 1
        return Moment(self)


@dataclass
class Moment:
    device: Device
    at_ms: float = -1.0

    def record(self) -> None:
        self.device.log.append("record")
        self.at_ms = self.device.now_ms

    def synchronize(self) -> None:
        self.device.waits += 1

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, Moment)
        assert self.device.waits, "read before the device was done"
        return end.at_ms - self.at_ms


def test_spans_are_told_by_name_in_order_and_in_nanoseconds() -> None:
    device = Device()
    clock = DeviceClock(device.make_event)
    for name, duration_ms in (("graph", 0.25), ("eager", 3.0), ("graph", 0.0015)):
        with clock.span(name):
            device.now_ms += duration_ms
    assert clock.read_ns() == {"graph": [250_000, 1_500], "eager": [3_000_000]}
