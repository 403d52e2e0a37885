"""Profiled steps of a workload: when the profiler looks, what it is told, on a CPU and a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from dsv4kv.bench.serve.executor import StepExecutor, StepTokens
from dsv4kv.errors import ConfigError
from dsv4kv.profile.run import run_profiled
from tests.bench.settings import tiny_config
from tests.gpu_twin import twin_gpu

OPERATIONS = {
    *(f"{name} csa" for name in ("window_insert", "state_append", "flush", "gather_window")),
    *(f"{name} hca" for name in ("window_insert", "state_append", "flush", "gather_window")),
    *("window_insert swa", "gather_window swa", "gather_topk csa", "gather_all hca"),
    *("indexer_state_append csa", "indexer_flush csa", "indexer_gather_all csa"),
}


class Listener:
    """A profiler that notes what it is told, with the decode steps that were done until then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.open: list[str] = []
        self.nests: set[tuple[str, ...]] = set()
        self.done: list[int] = []  # requests of every decode step

    def start(self) -> None:
        self.told.append(("start", len(self.done)))

    def stop(self) -> None:
        self.told.append(("stop", len(self.done)))

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        if name == "step":
            self.told.append(("step", len(self.done)))
        self.open.append(name)
        self.nests.add(tuple(self.open))
        yield
        self.open.pop()


def run(*settings: str) -> tuple[Listener, Any, Any]:
    """Profile three steps: what the profiler was told, the case and its profile."""
    listener, decode = Listener(), StepExecutor.decode

    def counted(executor: StepExecutor, step: StepTokens) -> None:
        decode(executor, step)
        listener.done.append(step.batch.num_requests)

    config = tiny_config(*settings, "workload.step=gather")
    with patch.object(StepExecutor, "decode", counted), run_profiled(config, listener, 3) as case:
        listener.told.append(("keep", len(listener.done)))
    return listener, case, case.profile


def test_the_profiler_looks_from_before_the_first_step_until_the_case_is_kept() -> None:
    """It begins behind the warm-up, and the step in which it begins is not looked at."""
    listener, case, _ = run()
    words, at = zip(*listener.told, strict=True)
    assert words == ("start", "step", "step", "step", "keep", "stop")
    assert at[1] == at[0] + 1
    assert listener.done[: at[0]].count(2) == 1  # measure.warmup_steps
    assert (case.status, case.device) == ("complete", "cpu")
    assert case.memcpy is not None
    inside = {nest[-1] for nest in listener.nests if nest[:2] == ("step", "launch")}
    assert inside - {"launch", "inputs"} == OPERATIONS
    assert listener.open == []


def test_bytes_are_those_of_the_steps_by_the_byte_model() -> None:
    """A window of 128 tokens and two requests: known without asking the toolkit."""
    *_, profile = run("workload.synthetic.input.low=150", "workload.synthetic.input.high=150")
    assert set(profile.useful_bytes) == OPERATIONS
    requests = sum(profile.step_requests)
    assert profile.useful_bytes["gather_window swa"] == requests * (8 + 128 * (584 + 1024))
    assert profile.useful_bytes["window_insert swa"] == requests * (1024 + 8 + 584)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("workload.data=none", "nothing to profile"),
        ("measure.warmup_steps=1000", "no more than 1000 decode steps of 2 requests"),
        ("workload.synthetic.requests=1", "no more than 1 decode steps of 2 requests"),
    ],
)
def test_what_has_no_steady_step_is_refused(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(setting)


def test_a_gpu_replays_graphs_in_marked_phases() -> None:
    with twin_gpu() as gpu:
        listener, case, _ = run("device=cuda", "cache.num_blocks=40")
    assert gpu.replays > 0
    assert case.device == "cuda"
    assert ("step", "inputs") in listener.nests
    assert not any("launch" in nest for nest in listener.nests)
    assert [peak.name for peak in case.peaks] == ["copy", "torch_copy", "read", "write"]


def test_bytes_of_a_gpu_are_by_kernel() -> None:
    layers = "model.layers=[0,2,3]"
    with twin_gpu():
        *_, on_gpu = run(
            "device=cuda", "cache.num_blocks=40", layers, "ops.variant.step_write=separate"
        )
    *_, on_cpu = run(layers)
    summed: dict[str, int] = {}
    for name, size in on_cpu.useful_bytes.items():
        kernel = name.split()[0].removeprefix("indexer_")
        summed[kernel] = summed.get(kernel, 0) + size
    assert on_gpu.useful_bytes == summed
