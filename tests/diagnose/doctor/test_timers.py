"""Clocks that agree and clocks that do not."""

import pytest

from dsv4kv.diagnose.doctor.gpu import check_device_clock, check_host_clocks, compare_device_clock
from dsv4kv.diagnose.doctor.machine import Check
from tests.gpu_twin import TwinEvent, TwinGpu, twin_device

S = 1_000_000_000


class Clocks:
    """Time passes in a sleep and by 30 ns with every look; the wall's clock may run otherwise."""

    def __init__(self, wall_rate: float = 1.0, step_ns: int = 10) -> None:
        self.now_ns = 5 * S
        self.wall_rate, self.step_ns = wall_rate, step_ns

    def look(self) -> int:
        self.now_ns += 30
        return self.now_ns // self.step_ns * self.step_ns

    def wall(self) -> int:
        return round(self.now_ns * self.wall_rate)

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    def check(self) -> dict[str, Check]:
        found = check_host_clocks(self.look, self.wall, self.sleep)
        return {check.name: check for check in found}


def test_clocks_that_agree_are_good() -> None:
    checks = Clocks(wall_rate=1.0005).check()
    assert checks["perf_counter"].status == "good"
    assert "0.050 % apart" in checks["perf_counter"].found
    assert checks["resolution"].status == "good"
    assert checks["resolution"].found == "steps of 30.0 ns, 30.0 ns a call"


@pytest.mark.parametrize("rate", [0.99, 1.01, 0.0])
def test_clocks_that_do_not_agree_are_told(rate: float) -> None:
    check = Clocks(wall_rate=rate).check()["perf_counter"]
    assert check.status == "note"
    assert check.advice


@pytest.mark.parametrize("step_ns", [2_000, 10 * S])
def test_a_clock_too_coarse_for_microseconds_is_told(step_ns: int) -> None:
    assert Clocks(step_ns=step_ns).check()["resolution"].status == "note"


@pytest.mark.parametrize(("host_ns", "status"), [(100_900_000, "good"), (102_000_000, "note")])
def test_a_gpus_events_are_held_against_the_host(host_ns: int, status: str) -> None:
    assert compare_device_clock(100_000_000, host_ns).status == status


def test_both_time_the_same_copies() -> None:
    """Events of the twin are a microsecond apart, so is a reading of this clock."""
    looks = iter(range(0, 10**9, 1_000))
    check = check_device_clock(twin_device(TwinGpu()), 64, lambda: next(looks))
    assert check.status == "good"
    assert check.found.startswith("1.00 µs against 1.00 µs of perf_counter")


def test_the_work_is_long_enough_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of 20 µs is made 5,000 times: a tenth of a second."""
    recorded: list[int] = []
    copies = [0]

    class Event(TwinEvent):
        def record(self) -> None:
            recorded.append(copies[0])

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: object) -> float:
            return (recorded[-1] - recorded[-2]) * 0.020

    def copy(*_: object) -> None:
        copies[0] += 1

    monkeypatch.setattr("torch.Tensor.copy_", copy)
    device = twin_device(TwinGpu())
    object.__setattr__(device, "make_event", Event)
    check_device_clock(device, 64, lambda: 0)
    assert recorded[-1] - recorded[-2] == 5_000
