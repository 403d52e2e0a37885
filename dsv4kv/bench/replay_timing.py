"""Times equal calls on a GPU: captured in a graph, as often as it takes, and replayed."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsv4kv.bench.device import CudaDevice
from dsv4kv.measure.protocol import Timing
from dsv4kv.measure.replays import ReplayTimer
from dsv4kv.measure.telemetry.telemetry import Window
from dsv4kv.workload.decode_graphs import Graph

EMPTY_GRAPH = "empty graph"


class CallTimer:
    """Times calls on one GPU, which stays warm from one to the next."""

    def __init__(self, device: CudaDevice, windows: list[Window] | None = None) -> None:
        """Time on ``device``, and add to ``windows`` when what was timed."""
        self._device = device
        self._windows = [] if windows is None else windows
        sleep: Any = torch.cuda._sleep if device.device.type == "cuda" else None
        self._replays = ReplayTimer(device.make_event, sleep)

    def time(
        self,
        calls: Sequence[Callable[[], None]],
        name: str,
        layer_type: str | None = None,
        temperature: str | None = None,
    ) -> list[int]:
        """Nanoseconds of one of the calls, all of one kind, which run one after the other."""
        graph = self._capture(calls)
        rounds = self._replays.rounds_for(graph.replay)
        if rounds > 1:
            graph = self._capture([*calls] * rounds)
        timing = self._replays.time(graph.replay, rounds * len(calls))
        self._keep(timing, name, layer_type, temperature)
        return timing.samples_ns

    def time_empty_graph(self) -> None:
        """Time a graph without work: torch launches two small kernels for any."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is empty
            graph = self._capture([])
        self._keep(self._replays.time(graph.replay, 1), EMPTY_GRAPH)

    def _keep(
        self,
        timing: Timing,
        name: str,
        layer_type: str | None = None,
        temperature: str | None = None,
    ) -> None:
        span = timing.started_ns, timing.ended_ns
        self._windows.append(Window(name, layer_type, temperature, *span, timing))

    def _capture(self, calls: Sequence[Callable[[], None]]) -> Graph:
        def run() -> None:
            for call in calls:
                call()

        return self._device.make_capturer().capture(run)
