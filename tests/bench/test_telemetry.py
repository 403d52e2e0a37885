"""Telemetry of a case: which windows it has, and how polls become a record."""

from types import SimpleNamespace

import pytest
import torch

from dsv4kv.bench.case import run_case
from dsv4kv.bench.device import CudaDevice
from dsv4kv.bench.telemetry import describe_telemetry, gpu_uuid
from dsv4kv.bench.timing import EMPTY_GRAPH, EMPTY_KERNEL
from dsv4kv.measure.protocol import Timing
from dsv4kv.measure.telemetry.readings import Readings, Table
from dsv4kv.measure.telemetry.telemetry import Telemetry, Window
from dsv4kv.runs.schema import Case
from dsv4kv.runs.telemetry import Telemetry as TelemetryRecord
from dsv4kv.runs.windows import window_state
from tests.bench.settings import ANY_STEP, tiny_config
from tests.gpu_twin import SAMPLES, TwinEvent, TwinGpu, twin_device, twin_gpu

BEGAN_NS = 10**12


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


def test_windows_follow_one_another_from_the_begin_of_polling(gpu_case: Case) -> None:
    windows = telemetry_of(gpu_case).windows
    moments = [moment for each in windows for moment in (each.started_ns, each.ended_ns)]
    assert windows[0].name == "serve"
    assert moments == sorted(moments)
    assert moments[0] > 0


def test_the_least_that_a_replay_takes_is_told(gpu_case: Case) -> None:
    assert telemetry_of(gpu_case).empty_graph_ns == [1_000] * SAMPLES  # of the twin's clock


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


def describe(readings: Readings, *windows: Window) -> TelemetryRecord:
    telemetry = Telemetry()
    telemetry.started_ns, telemetry.readings = BEGAN_NS, readings
    telemetry.windows.extend(windows)
    return describe_telemetry(telemetry)


def test_times_are_told_since_polling_began() -> None:
    often = Table([BEGAN_NS + 5, BEGAN_NS + 45], {"reasons": [0, 4], "power_mw": [None, None]})
    timing = Timing([7, 8], 64, BEGAN_NS + 10, BEGAN_NS + 40, 3, converged=False)
    window = Window("gather_topk", "csa", "hot", BEGAN_NS + 10, BEGAN_NS + 40, timing)
    facts = {"uuid": "GPU-1", "name": "NVIDIA H200", "mig": 0}
    record = describe(Readings(facts, often, absent={"power_mw": "Not Supported"}), window)
    assert record.gpu_samples is not None
    assert record.gpu_samples.at_ns == [5, 45]
    assert record.gpu_samples.reasons == [0, 4]
    assert record.gpu_samples.power_mw is None
    assert record.gpu is not None
    assert (record.gpu.name, record.gpu.mig, record.gpu.ecc) == ("NVIDIA H200", 0, None)
    (told,) = record.windows
    assert (told.started_ns, told.ended_ns, told.calls) == (10, 40, 64)
    assert (told.warmup_ns, told.converged) == (3, False)
    assert window_state(record, told).limits == {"power cap": 0.5}
    assert record.host_samples is None


def test_the_gpu_is_named_as_cuda_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "11111111-2222-3333-4444-555555555555"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    device = CudaDevice(
        torch.device("cuda", 0), "sm_90a", 0, 0, TwinEvent, lambda: TwinGpu().capture
    )
    assert gpu_uuid(device) == uuid
    assert gpu_uuid(None) is None
    assert gpu_uuid(twin_device(TwinGpu())) is None
