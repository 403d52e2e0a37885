"""Profiled steps of a workload: when the profiler looks, what it is told, on a CPU and a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.bench.memory import audit_memory
from dsv4kv.bench.serve.executor import StepExecutor, StepTokens
from dsv4kv.errors import ConfigError
from dsv4kv.profile.run import run_profiled
from dsv4kv.runs.schema import Case
from tests.bench.settings import tiny_config
from tests.gpu_twin import twin_gpu

OPERATIONS = {
    *(f"{name} csa" for name in ("window_insert", "state_append", "flush", "gather_window")),
    *(f"{name} hca" for name in ("window_insert", "state_append", "flush", "gather_window")),
    *("window_insert swa", "gather_window swa", "gather_topk csa", "gather_all hca"),
    *("indexer_state_append csa", "indexer_flush csa", "indexer_gather_all csa"),
}


class Listener:
    """A profiler that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.open: list[str] = []
        self.nests: set[tuple[str, ...]] = set()

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        if name == "step":
            self.told.append("step")
        self.open.append(name)
        self.nests.add(tuple(self.open))
        yield
        self.open.pop()


ENGINE = "workload.step=engine"


def run(*settings: str, steps: int = 3) -> tuple[Listener, Case]:
    listener, kept = Listener(), list[Case]()

    def keep(case: Case) -> None:
        listener.told.append("keep")
        kept.append(case)

    gathers = [] if ENGINE in settings else ["workload.step=gather"]
    run_profiled(tiny_config(*settings, *gathers), listener, steps, keep)
    return listener, kept[0]


def profile_of(case: Case) -> Any:
    assert case.profile is not None
    return case.profile


def test_the_profiler_looks_from_before_the_first_step_until_the_case_is_kept() -> None:
    listener, case = run()
    assert listener.told == ["start", "step", "step", "step", "keep", "stop"]
    assert (case.status, case.device) == ("complete", "cpu")
    assert case.memcpy is not None


def test_the_step_in_which_a_profiler_begins_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    decode = StepExecutor.decode

    def counted(executor: StepExecutor, step: StepTokens) -> None:
        decode(executor, step)
        done.append(step.batch.num_requests)

    class Counter(Listener):
        def start(self) -> None:
            self.at_start = len(done)

        @contextmanager
        def mark(self, name: str) -> Iterator[None]:
            if name == "step" and "step" not in self.told:
                self.at_first_step = len(done)
            with super().mark(name):
                yield

    monkeypatch.setattr(StepExecutor, "decode", counted)
    counter = Counter()
    run_profiled(tiny_config(), counter, 3, lambda _case: None)
    assert counter.at_first_step == counter.at_start + 1
    assert done[: counter.at_start].count(2) == 1  # measure.warmup_steps


def test_every_operation_of_a_cpu_is_marked_inside_its_step() -> None:
    listener, _ = run()
    inside = {nest[-1] for nest in listener.nests if nest[:2] == ("step", "launch")}
    assert inside - {"launch", "inputs"} == OPERATIONS
    assert listener.open == []


def test_bytes_are_those_of_the_steps_by_the_byte_model() -> None:
    """A window of 128 tokens and two requests: known without asking the toolkit."""
    _, case = run("workload.synthetic.input.low=150", "workload.synthetic.input.high=150")
    profile = profile_of(case)
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
        listener, case = run("device=cuda", "cache.num_blocks=40")
    assert gpu.replays > 0
    assert case.device == "cuda"
    assert ("step", "inputs") in listener.nests
    assert not any("launch" in nest for nest in listener.nests)
    assert [peak.name for peak in case.peaks] == ["copy", "torch_copy", "read", "write"]


def test_bytes_of_a_gpu_are_by_kernel() -> None:
    layers = "model.layers=[0,2,3]"
    with twin_gpu():
        _, on_gpu = run(
            "device=cuda", "cache.num_blocks=40", layers, "ops.variant.step_write=separate"
        )
    _, on_cpu = run(layers)
    summed: dict[str, int] = {}
    for name, size in profile_of(on_cpu).useful_bytes.items():
        kernel = name.split()[0].removeprefix("indexer_")
        summed[kernel] = summed.get(kernel, 0) + size
    assert profile_of(on_gpu).useful_bytes == summed


def test_memory_of_the_pools_is_what_the_plan_says(tmp_path: Path) -> None:
    audit = audit_memory(tiny_config(), tmp_path)
    assert audit.pool_bytes == audit.planned_bytes > 0
    assert [mark.moment for mark in audit.marks] == ["before", "after"]
    assert audit.marks[0].allocated_bytes is None
    assert list(tmp_path.iterdir()) == []
