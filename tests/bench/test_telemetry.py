"""Telemetry of a case: which windows it has, and how polls become a record."""

import pytest

from dsv4kv.bench.device import EMPTY_GRAPH, EMPTY_KERNEL
from dsv4kv.bench.run import run_case
from dsv4kv.runs.schema import Case
from dsv4kv.runs.telemetry import Telemetry as TelemetryRecord
from tests.bench.settings import ANY_STEP, tiny_config
from tests.gpu_twin import twin_gpu


@pytest.fixture(scope="module")
def gpu_case() -> Case:
    with twin_gpu():
        config = tiny_config("device=cuda", "model.layers=[0,2]", *ANY_STEP, "cache.num_blocks=40")
        return run_case({}, config, lambda _tokens: None)


def telemetry_of(case: Case) -> TelemetryRecord:
    assert case.telemetry is not None
    return case.telemetry


def test_every_row_that_was_timed_on_a_gpu_has_its_window(gpu_case: Case) -> None:
    telemetry = telemetry_of(gpu_case)
    rows = [(each.name, each.layer_type, each.temperature) for each in gpu_case.operations]
    peaks = [(peak.name, None, None) for peak in gpu_case.peaks]
    timed = [each for each in telemetry.windows if each.calls]
    found = [(each.name, each.layer_type, each.temperature) for each in timed]
    floors = [(EMPTY_GRAPH, None, None), (EMPTY_KERNEL, None, None)]
    assert found[: len(floors + peaks)] == floors + peaks
    assert set(found[len(floors + peaks) :]) == set(rows)
    assert len(found) == len(floors + peaks + rows)
    assert all(each.converged is not None for each in timed)  # a busy machine may not let them


def test_a_case_on_the_cpu_has_two_windows_with_polls_around_them() -> None:
    case = run_case({}, tiny_config(), lambda _tokens: None)
    telemetry = telemetry_of(case)
    assert [each.name for each in telemetry.windows] == ["memcpy", "serve"]
    assert telemetry.empty_graph_ns is None
    assert telemetry.gpu is None
    assert telemetry.host_samples is not None
    at_ns = telemetry.host_samples.at_ns
    assert at_ns[0] < telemetry.windows[0].started_ns
    assert at_ns[-1] > telemetry.windows[-1].ended_ns
    assert telemetry.memory_peak_bytes > 10**7


def test_a_run_that_cannot_be_polled_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    case = run_case({}, tiny_config(), lambda _tokens: None)
    assert case.status == "complete"
    assert telemetry_of(case).host_samples is None
    assert telemetry_of(case).absent == {
        "telemetry": "could not begin (No such file or directory)"
    }
