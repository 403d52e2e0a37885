"""The pace of polling, and a GPU that disappears meanwhile, on a clock that the test moves."""

from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from dsv4kv.measure.telemetry.process import SELDOM_EVERY, NvmlGpu, poll
from dsv4kv.measure.telemetry.readings import HostReader
from tests.measure.telemetry.fake_nvml import OWN_PID, UUID, FakeNvml

INTERVAL_NS = 40_000_000


@dataclass
class Run:
    """Polls until ``polls`` have been; ``events`` are called before the poll of that number."""

    nvml: FakeNvml
    polls: int = 20
    delay_ns: int = 0
    events: dict[int, Any] = field(default_factory=dict)
    now_ns: int = 1_000
    waited: list[float] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def stopped(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now_ns += round(seconds * 1e9)
        if event := self.events.get(len(self.waited)):
            event()
        return len(self.waited) >= self.polls

    def write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self.now_ns += self.delay_ns

    def go(self, gpu: NvmlGpu | None = None) -> dict[str, list[dict[str, Any]]]:
        found = gpu or NvmlGpu(self.nvml, UUID, OWN_PID)
        host = HostReader(OWN_PID)
        poll(found, host, self.write, self.stopped, INTERVAL_NS, lambda: self.now_ns)
        kinds = ("often", "seldom", "host", "absent")
        return {kind: [each for each in self.lines if each["kind"] == kind] for kind in kinds}


def test_polls_are_an_interval_apart() -> None:
    lines = Run(FakeNvml(), polls=10).go()
    at = [line["at"] for line in lines["often"]]
    assert at == [1_000 + INTERVAL_NS * n for n in range(11)]


def test_what_changes_seldom_is_asked_at_every_fifth_poll_and_at_the_end() -> None:
    lines = Run(FakeNvml(), polls=12).go()
    at = [(line["at"] - 1_000) // INTERVAL_NS for line in lines["seldom"]]
    assert at == [0, SELDOM_EVERY, 2 * SELDOM_EVERY, 12]
    assert [(line["at"] - 1_000) // INTERVAL_NS for line in lines["host"]] == at


def test_the_last_poll_comes_after_the_end_was_asked_for() -> None:
    run = Run(FakeNvml(), polls=1)
    run.events = {1: lambda: setattr(run.nvml, "reasons", 0x20)}
    assert [line["reasons"] for line in run.go()["often"]] == [0, 0x20]


def test_polls_that_come_too_late_are_left_out_and_not_made_up_for() -> None:
    run = Run(FakeNvml(), polls=6, delay_ns=INTERVAL_NS * 3 // 4)  # two or more lines a poll
    at = [line["at"] for line in run.go()["often"]]
    grid = [(each - 1_000) % INTERVAL_NS for each in at]
    assert set(grid[:-1]) == {0}
    assert all(seconds >= 0 for seconds in run.waited)
    assert len(at) == 7


def test_a_gpu_that_disappears_leaves_what_it_told_and_the_reason() -> None:
    run = Run(FakeNvml(), polls=20)
    run.events = {8: lambda: setattr(run.nvml, "gone", True)}
    lines = run.go()
    assert len(lines["often"]) == 8
    assert lines["absent"][0]["gpu"] == "NVML: GPU is lost, in the middle of the run"
    assert len(lines["host"]) == 5  # goes on
    assert run.nvml.calls.count("nvmlDeviceGetClockInfo") == 2 * 8 + 1  # and no more


def test_one_that_disappears_between_two_questions_of_a_poll_is_no_error() -> None:
    nvml = FakeNvml()

    def lose(_gpu: Any, _kind: int) -> int:
        nvml.gone = True
        return 1_980

    gpu = NvmlGpu(nvml, UUID, OWN_PID)
    nvml.answers["nvmlDeviceGetClockInfo"] = lose
    lines = Run(nvml, polls=3).go(gpu)
    assert lines["often"] == []
    assert "in the middle" in lines["absent"][0]["gpu"]


def test_a_gpu_that_changes_clock_in_the_middle_is_told_from_then_on() -> None:
    run = Run(FakeNvml(), polls=10)
    run.events = {6: lambda: run.nvml.clocks.update({pynvml.NVML_CLOCK_SM: 1_200})}
    clocks = [line["sm_clock_mhz"] for line in run.go()["often"]]
    assert clocks == [1_980] * 6 + [1_200] * 5


def test_without_a_gpu_the_host_is_polled_alone() -> None:
    lines: list[dict[str, Any]] = []
    stops = iter([False] * 6 + [True])
    poll(None, HostReader(1), lines.append, lambda _: next(stops), INTERVAL_NS)
    assert {line["kind"] for line in lines} == {"host", "absent"}


@pytest.mark.parametrize("polls", [1, 7])
def test_what_is_absent_is_told_last(polls: int) -> None:
    run = Run(FakeNvml(), polls=polls)
    run.go()
    assert run.lines[-1]["kind"] == "absent"
    assert run.lines[-1]["pcie_replays"] == "Not Supported"
