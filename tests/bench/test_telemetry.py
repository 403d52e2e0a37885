"""Telemetry of a case, and the polling process: whatever becomes of it, no run fails."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.bench import telemetry as module
from dsv4kv.bench.device import EMPTY_KERNEL
from dsv4kv.bench.run import run_case
from dsv4kv.bench.telemetry import Telemetry, parse_lines
from dsv4kv.runs.parts import Telemetry as TelemetryRecord
from dsv4kv.runs.schema import Case
from tests.bench.fake_nvml import UUID
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
    timed = [each for each in telemetry.windows if each.name != "serve"]
    found = [(each.name, each.layer_type, each.temperature) for each in timed]
    floors = [(EMPTY_KERNEL, None, None)]
    assert found[: len(floors + peaks)] == floors + peaks
    assert set(found[len(floors + peaks) :]) == set(rows)
    assert len(found) == len(floors + peaks + rows)
    assert all(each.converged is not None for each in timed)  # a busy machine may not let them


def test_a_case_on_the_cpu_has_two_windows_with_polls_around_them() -> None:
    case = run_case({}, tiny_config(), lambda _tokens: None)
    telemetry = telemetry_of(case)
    assert [each.name for each in telemetry.windows] == ["memcpy", "serve"]
    assert telemetry.gpu_samples is None
    assert telemetry.host_samples is not None
    at_ns = telemetry.host_samples.at_ns
    assert at_ns[0] < telemetry.windows[0].started_ns
    assert at_ns[-1] > telemetry.windows[-1].ended_ns


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


INTERVAL_NS = 5_000_000
LIBRARY = """
import os, time
class NVMLError(Exception):
    value = 3
    def __str__(self): return "Not Supported"
class NVMLError_NotFound(NVMLError): pass
class NVMLError_InvalidArgument(NVMLError): pass
class NVMLError_FunctionNotFound(NVMLError): pass
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
nvmlDeviceGetCurrentClocksEventReasons = lambda _: int(os.environ.get("REASONS", "0"))
asked = 0
def refuse(*_): raise NVMLError
def clock(gpu, kind):
    global asked
    asked += 1
    {misdeed}
    return 1980 if kind == 1 else 3201
def __getattr__(name):
    if name.startswith("NVML_"): return 3 if name.endswith("NOT_SUPPORTED") else -1
    if name in ("nvmlInit", "nvmlDeviceGetHandleByUUID"): return lambda *_: "gpu"
    return clock if name == "nvmlDeviceGetClockInfo" else refuse
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a module ``pynvml`` of our own before the real one, for processes to come."""

    def install(misdeed: str = "pass") -> None:
        (tmp_path / "pynvml.py").write_text(LIBRARY.replace("{misdeed}", misdeed))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return install


def wait_for_polls(telemetry: Telemetry, count: int) -> None:
    """Until so many lines have been written, or none come any more."""
    lines, process = telemetry._lines, telemetry._process
    assert lines is not None
    assert process is not None
    for _ in range(12_000):
        written = os.pread(lines.fileno(), 1 << 20, 0).count(b'"often"')
        if written >= count or process.poll() is not None:
            return
        time.sleep(0.005)


def test_a_gpu_is_polled_while_the_run_goes_on(library: Any) -> None:
    library()
    with Telemetry(UUID, INTERVAL_NS) as telemetry:
        wait_for_polls(telemetry, 4)
    readings = telemetry.readings
    assert {poll["sm_clock_mhz"] for poll in readings.often} == {1_980}
    at_ns = [poll["at"] for poll in readings.often]
    assert len(at_ns) >= 4
    assert at_ns == sorted(at_ns)
    assert telemetry.started_ns < at_ns[0]
    assert "own_cpu_ns" in readings.host[0]
    assert readings.absent["power_mw"] == "Not Supported"


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x0, False), (0x4, False), (0x8, True), (0x20, True), (0x44, True), (0x80, True)],
)
def test_a_throttled_gpu_is_seen_while_the_run_goes_on(
    reasons: int, throttled: bool, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library()
    monkeypatch.setenv("REASONS", str(reasons))
    with Telemetry(UUID, INTERVAL_NS) as telemetry:
        wait_for_polls(telemetry, 2)
        now_ns = time.perf_counter_ns()
        assert telemetry.was_throttled(now_ns - INTERVAL_NS, now_ns) == throttled
    assert telemetry.was_throttled(now_ns - INTERVAL_NS, now_ns) == throttled


def test_a_poll_is_of_the_window_that_it_falls_into_or_precedes() -> None:
    telemetry = Telemetry()
    telemetry.readings.often = [
        {"at": at, "reasons": bits} for at, bits in [(10, 0), (20, 0x8), (30, None), (40, 0)]
    ]
    found = {span: telemetry.was_throttled(*span) for span in [(5, 15), (12, 22), (25, 29)]}
    assert found == {(5, 15): False, (12, 22): True, (25, 29): True}
    assert not telemetry.was_throttled(31, 45)
    assert not Telemetry().was_throttled(0, 10)


def test_a_library_that_takes_its_process_along_leaves_what_was_told(library: Any) -> None:
    library("if asked == 7: os._exit(139)")
    with Telemetry(UUID, INTERVAL_NS) as telemetry:
        wait_for_polls(telemetry, 99)
    assert len(telemetry.readings.often) == 3
    assert telemetry.readings.absent["telemetry"] == "polling ended before the run did"


def test_a_library_that_hangs_is_not_waited_for(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    library("if asked == 5: time.sleep(600)")
    with Telemetry(UUID, INTERVAL_NS) as telemetry:
        wait_for_polls(telemetry, 2)
    assert len(telemetry.readings.often) == 2
    assert telemetry._process is not None
    assert telemetry._process.returncode is not None


def test_without_a_driver_the_host_is_polled_and_the_reason_said() -> None:
    with Telemetry(UUID, INTERVAL_NS) as telemetry:
        pass
    assert telemetry.readings.host
    assert telemetry.readings.absent["gpu"].startswith("NVML")


def test_an_error_of_the_run_goes_through_and_the_process_ends() -> None:
    telemetry = Telemetry()
    with pytest.raises(KeyboardInterrupt), telemetry, telemetry.window("serve"):
        raise KeyboardInterrupt
    assert telemetry._process is not None
    assert telemetry._process.returncode == 0
    assert len(telemetry.windows) == 1


def test_the_process_ends_when_nobody_holds_its_input_any_more() -> None:
    with Telemetry() as telemetry:
        process = telemetry._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()  # as the system does for a run that was killed
        assert process.wait(30) == 0


def lines(*documents: dict[str, object]) -> list[bytes]:
    return [json.dumps(document).encode() + b"\n" for document in documents]


def test_a_line_that_was_cut_off_is_left_out() -> None:
    whole = lines({"kind": "host", "at": 2, "own_cpu_ns": 5})
    assert parse_lines([*whole, b'{"kind": "host", "at"']).host == [{"at": 2, "own_cpu_ns": 5}]
