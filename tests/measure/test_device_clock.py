"""Times on a device's clock, with events that a test moves."""

from dataclasses import dataclass, field

import pytest

from dsv4kv.measure.recorder import DeviceClock, Event


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


def test_nothing_waits_for_the_device_before_the_spans_are_read() -> None:
    device = Device()
    clock = DeviceClock(device.make_event)
    for _ in range(5):
        with clock.span("step"):
            pass
    assert device.waits == 0
    clock.read_ns()
    assert device.waits == 1


def test_a_span_that_fails_is_not_kept() -> None:
    device = Device()
    clock = DeviceClock(device.make_event)
    with pytest.raises(KeyboardInterrupt), clock.span("step"):
        raise KeyboardInterrupt
    assert clock.read_ns() == {}
