"""Calls in graphs: captured as often as it takes, on a device that stays warm."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from dsv4kv.bench.device import EMPTY_GRAPH, EMPTY_KERNEL, CallTimer
from dsv4kv.bench.telemetry import Window
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.launches.launch import Launch
from tests.gpu_twin import FEW_REPLAYS, SAMPLES, TwinGpu, twin_device

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
        if not self.calls:
            warnings.warn("The CUDA Graph is empty.", UserWarning, stacklevel=2)
        return SimpleNamespace(replay=lambda: None)

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
    windows: list[Window] = []
    samples = CallTimer(twin_device(gpu), windows).time([gpu.call] * 4, "gather", "csa", "cold")
    assert gpu.sizes == [4, 6 * 4]
    assert samples == [round(REPLAY_NS / 24)] * SAMPLES
    (window,) = windows
    assert (window.name, window.layer_type, window.temperature) == ("gather", "csa", "cold")
    assert window.timing is not None
    assert window.timing.calls == 24
    assert window.started_ns <= window.ended_ns


def test_a_graph_without_work_and_a_chain_of_empty_kernels_are_the_floors() -> None:
    gpu = Gpu()
    windows: list[Window] = []
    with patch.object(launching, "_launcher", lambda: gpu):
        samples = CallTimer(twin_device(gpu), windows).time_floors()
    nodes = 6 * 64  # of a chain of 64, repeated until it takes as long as a replay must
    assert gpu.sizes == [0, 64, nodes]
    assert [window.name for window in windows] == [EMPTY_GRAPH, EMPTY_KERNEL]
    assert windows[0].timing is not None
    assert windows[0].timing.samples_ns == [REPLAY_NS] * SAMPLES
    assert samples == [round(REPLAY_NS / nodes)] * SAMPLES
