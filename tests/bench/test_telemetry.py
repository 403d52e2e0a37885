"""Telemetry of a case and the polling process: no run fails, whatever becomes of it."""

import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dsv4kv.bench import polling
from dsv4kv.bench import telemetry as module
from dsv4kv.bench.device import EMPTY_KERNEL
from dsv4kv.bench.run import run_case
from dsv4kv.bench.telemetry import Telemetry
from dsv4kv.runs.parts import GpuSamples
from dsv4kv.runs.parts import Telemetry as TelemetryRecord
from dsv4kv.runs.schema import Case
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


UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = UUID.replace("1", "9")
OWN_PID = 4321
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


def refuse(code: int) -> Callable[..., Any]:
    """A function that fails."""

    def fail(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return fail


class FakeNvml:
    """One GPU that answers, refuses, lacks a function or disappears: stands for ``pynvml``.

    Constants, structures and errors are the real module's, which needs no driver for them.
    """

    def __init__(self, lacking: str = "", **answers: Any) -> None:
        self.lacking, self.gone, self.calls = lacking, False, list[str]()
        power = pynvml.c_nvmlFieldValue_t()
        power.nvmlReturn, power.valueType, power.value.uiVal = pynvml.NVML_SUCCESS, 1, 512_000
        usual: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid == UUID or absent(),
            "nvmlDeviceGetClockInfo": lambda _, kind: 1_980 + 1_221 * (kind != 1),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x4,
            "nvmlDeviceGetTemperature": lambda *_: 61,
            "nvmlDeviceGetFieldValues": lambda _, ids: [power for _each in ids],
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid) for pid in (OWN_PID, 7, 8)
            ],
        }
        self.answers, absent = usual | answers, refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if name == self.lacking:
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            gone = refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
            answer = self.answers.get(name, refuse(pynvml.NVML_ERROR_NOT_SUPPORTED))
            return (gone if self.gone else answer)(*arguments)

        return call if name.startswith("nvml") else found


def open_gpu(nvml: FakeNvml, uuid: str = UUID) -> polling.NvmlGpu:
    return polling.NvmlGpu(nvml, uuid, OWN_PID)


def test_a_gpu_tells_its_state_and_who_else_uses_it() -> None:
    gpu = open_gpu(FakeNvml())
    assert gpu.ask("often") == {
        "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 3_201,
        "reasons": 0x4,
        "power_mw": 512_000,
        "temperature_c": 61,
    }
    assert gpu.ask("seldom") == {"other_processes": 2}
    assert gpu.absent == {}
    assert set(polling.OFTEN) == set(GpuSamples.model_fields) - {"at_ns"}


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        *(
            ({"nvmlDeviceGetTemperature": refuse(code)}, {"temperature_c": reason})
            for code, reason in (
                (pynvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported"),
                (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
            )
        ),
        (
            {"lacking": "nvmlDeviceGetFieldValues"},
            {"power_mw": "module 'pynvml' has no attribute 'nvmlDeviceGetFieldValues'"},
        ),
    ],
)
def test_what_is_refused_is_absent_with_the_reason_and_the_rest_goes_on(
    changes: dict[str, Any], absent: dict[str, str]
) -> None:
    gpu = open_gpu(FakeNvml(**changes))
    for _ in range(3):
        answers = gpu.ask("often")
        assert answers.keys() == polling.OFTEN.keys() - absent.keys()
    assert gpu.absent == absent


def test_an_older_driver_tells_reasons_under_their_older_name() -> None:
    answers: dict[str, Any] = {
        "nvmlDeviceGetCurrentClocksEventReasons": refuse(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x40,
    }
    assert open_gpu(FakeNvml(**answers)).ask("often")["reasons"] == 0x40


def test_a_part_of_a_split_gpu_is_found_by_its_own_prefix() -> None:
    def find(uuid: str) -> str:
        if uuid.startswith("MIG-"):
            return "instance"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    nvml = FakeNvml(nvmlDeviceGetHandleByUUID=find)
    assert open_gpu(nvml, "11111111-2222").ask("often")["sm_clock_mhz"] == 1_980


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, f"NVML knows no GPU {OTHER_UUID}"),
        (
            {"nvmlInit": refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)},
            "NVML: NVML Shared Library Not Found",
        ),
        ({"nvmlInit": refuse(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)}, "NVML: Driver Not Loaded"),
    ],
)
def test_without_library_driver_or_such_a_gpu_it_is_gone_with_the_reason(
    answers: dict[str, Any], reason: str
) -> None:
    with pytest.raises(polling.GpuGone, match=f"^{reason}$"):
        open_gpu(FakeNvml(**answers), OTHER_UUID)


def test_a_gpu_that_disappears_leaves_what_it_told_and_the_reason() -> None:
    nvml, waits, lines = FakeNvml(), count(1), list[dict[str, Any]]()

    def stopped(_: float) -> bool:
        nvml.gone = (number := next(waits)) >= 8
        return number >= 20

    moments = count(1_000, INTERVAL_NS)
    host = polling.HostReader(OWN_PID)
    polling.poll(open_gpu(nvml), host, lines.append, stopped, INTERVAL_NS, lambda: next(moments))
    kinds = Counter(line["kind"] for line in lines)
    assert kinds["often"] == 8
    absent, *_ = (line for line in lines if line["kind"] == "absent")
    assert absent["gpu"] == "NVML: GPU is lost, in the middle of the run"
    assert kinds["host"] > 2  # goes on
    assert nvml.calls.count("nvmlDeviceGetClockInfo") == 2 * 8 + 1  # and no more
