"""Replays and calls in graphs, on devices whose clock, queue and sleep the test sees."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from dsv4kv.bench.device import EMPTY_KERNEL, CallTimer, CudaDevice
from dsv4kv.bench.protocol import Event, Rules
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.launches import Launch
from dsv4kv.runs.telemetry import MeasuredWindow
from tests.gpu_twin import FEW_REPLAYS, SAMPLES, TwinGpu, twin_device

MS = 1_000_000
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

    def timer(self) -> CallTimer:
        capture = lambda: lambda _run: self.replay  # noqa: E731
        device = CudaDevice(torch.device("cpu"), "", 0, 0, self.make_event, capture)
        return CallTimer(device, rules=QUICK, sleep=self.sleep, clock_ns=lambda: self.now_ns)

    def call(self) -> None:
        """What a replay stands for."""

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


def test_every_replay_has_a_pair_of_events_behind_one_sleep_a_batch() -> None:
    device = Device()
    device.timer().measure([device.call], "call")
    assert {batch[0] for batch in device.batches()} == {"s"}
    assert {batch[1:].replace("ere", "") for batch in device.batches()} == {""}
    assert max(len(batch) for batch in device.batches()) == 1 + 3 * 4  # of 4 ms


def test_the_device_is_warmed_up_fully_once_and_briefly_from_then_on() -> None:
    device = Device()
    timer = device.timer()
    first, second = (timer.measure([device.call], "call") for _ in range(2))
    assert first.started_ns >= QUICK.warmup_ns > second.started_ns - first.ended_ns


REPLAY_NS = 1_000  # of the twin's clock, whatever a graph holds


@dataclass
class Gpu(TwinGpu):
    """Counts the calls of every capture.

    Attributes:
        sizes: Calls that each capture held.
    """

    sizes: list[int] = field(default_factory=list)
    calls: int = 0

    def capture(self, run: Callable[[], None]) -> Any:
        self.calls = 0
        run()
        self.sizes.append(self.calls)
        return lambda: None

    def call(self) -> None:
        self.calls += 1

    def prepare(self, launch: Launch) -> Callable[[], None]:
        assert launch.kernel == "do_nothing"
        return self.call


@pytest.fixture(autouse=True)
def few_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(FEW_REPLAYS, unit_ns=5 * REPLAY_NS + 1)
    monkeypatch.setattr("dsv4kv.bench.protocol.RULES", rules)


def test_a_graph_is_captured_anew_where_a_replay_would_be_too_short() -> None:
    gpu = Gpu()
    windows: list[MeasuredWindow] = []
    timer = CallTimer(twin_device(gpu), windows)
    samples = timer.measure([gpu.call] * 4, "gather", "csa", "cold").samples_ns
    assert gpu.sizes == [4, 6 * 4]
    assert samples == [round(REPLAY_NS / 24)] * SAMPLES
    (window,) = windows
    assert (window.name, window.layer_type, window.temperature) == ("gather", "csa", "cold")
    assert window.started_ns <= window.ended_ns


def test_the_floor_is_a_chain_of_empty_kernels() -> None:
    gpu = Gpu()
    windows: list[MeasuredWindow] = []
    with patch.object(launching, "_launcher", lambda: gpu):
        samples = CallTimer(twin_device(gpu), windows).time_floor()
    nodes = 6 * 64  # of a chain of 64, repeated until it takes as long as a replay must
    assert gpu.sizes == [64, nodes]
    assert [window.name for window in windows] == [EMPTY_KERNEL]
    assert samples == [round(REPLAY_NS / nodes)] * SAMPLES
