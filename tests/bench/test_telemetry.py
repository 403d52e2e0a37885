"""Telemetry of a case and the polling process: no run fails, whatever becomes of it."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from dsv4kv.bench import polling
from dsv4kv.bench import telemetry as module
from dsv4kv.bench.device import EMPTY_KERNEL
from dsv4kv.bench.run import run_case
from dsv4kv.bench.telemetry import Telemetry, parse_lines
from dsv4kv.runs.parts import GpuSamples, HostSamples
from dsv4kv.runs.parts import Telemetry as TelemetryRecord
from dsv4kv.runs.schema import Case
from tests.bench.fake_nvml import OTHER_UUID, OWN_PID, UUID, FakeNvml, refuse
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


PID = 77
OWN = f"{PID} (a (strange) name) R 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 9 9 9 " + "0 " * 14
OWN_ON_CPU_3 = OWN.rstrip() + " 3 0 0 0 0 0 0 0 0 0 0 0 0 0"
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
CLOCK = "sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        f"proc/{PID}/stat": OWN_ON_CPU_3,
        "proc/stat": "cpu  1000 200 300 99999 88888 10 20 30 0 0\ncpu0 1 1 1 1\nbtime 1\n",
        CLOCK: "3725123\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "800000\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    return tmp_path


def read(root: Path) -> polling.HostReader:
    return polling.HostReader(PID, root / "sys/devices/system/cpu")


def test_processor_times_and_the_clock_of_the_runs_cpu_are_told(root: Path) -> None:
    host = read(root)
    found = host.read()
    assert found == {
        "cpu_mhz": 3_725,
        "machine_busy_ns": 1_560 * TICK_NS,  # idle and waiting left out
        "own_cpu_ns": 200 * TICK_NS,
    }
    assert set(found) == set(HostSamples.model_fields) - {"at_ns"}
    assert host.absent == {}


def test_what_a_machine_does_not_tell_is_absent_with_the_reason(root: Path) -> None:
    (root / CLOCK).unlink()
    (root / "proc/stat").write_text("nothing\nbtime 1\n")
    host = read(root)
    assert set(host.read()) == {"own_cpu_ns"}
    assert host.absent == {
        "cpu_mhz": "No such file or directory",
        "machine_busy_ns": "not in the expected format",
    }


def open_gpu(nvml: FakeNvml, uuid: str = UUID) -> polling.NvmlGpu:
    return polling.NvmlGpu(nvml, uuid, OWN_PID)


def test_a_gpu_tells_its_state_and_who_else_uses_it() -> None:
    gpu = open_gpu(FakeNvml(reasons=0x4, pids=[OWN_PID, 7, 8]))
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
            ({"answers": {"nvmlDeviceGetTemperature": refuse(code)}}, {"temperature_c": reason})
            for code, reason in (
                (pynvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported"),
                (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
                (pynvml.NVML_ERROR_TIMEOUT, "Timeout"),
            )
        ),
        (
            {"lacking": {"nvmlDeviceGetFieldValues"}},
            {
                "power_mw": "this nvidia-ml-py answers otherwise (module 'pynvml' has no "
                "attribute 'nvmlDeviceGetFieldValues')"
            },
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


@pytest.mark.parametrize("way", ["package", "library"])
def test_an_older_library_tells_reasons_under_their_older_name(way: str) -> None:
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    nvml = FakeNvml(answers={"nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x40})
    if way == "package":
        nvml.lacking.add(name)
    else:
        nvml.answers[name] = refuse(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert open_gpu(nvml).ask("often")["reasons"] == 0x40


def test_a_run_that_the_driver_does_not_know_by_its_id_knows_no_others() -> None:
    gpu = open_gpu(FakeNvml(pids=[7]))
    assert gpu.ask("seldom")["other_processes"] is None
    assert "own process id" in gpu.absent["other_processes"]


def test_a_part_of_a_split_gpu_is_found_by_its_own_prefix() -> None:
    def find(uuid: str) -> str:
        if uuid.startswith("MIG-"):
            return "instance"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    nvml = FakeNvml(answers={"nvmlDeviceGetHandleByUUID": find})
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
        open_gpu(FakeNvml(answers=answers), OTHER_UUID)


def test_a_gpu_that_falls_off_the_bus_is_gone() -> None:
    nvml = FakeNvml()
    gpu = open_gpu(nvml)
    gpu.ask("often")
    nvml.gone = True
    with pytest.raises(polling.GpuGone, match="GPU is lost"):
        gpu.ask("often")
    with pytest.raises(polling.GpuGone, match="GPU is lost"):
        gpu.ask("seldom")


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

    def go(self, gpu: polling.NvmlGpu | None = None) -> dict[str, list[dict[str, Any]]]:
        found = gpu or polling.NvmlGpu(self.nvml, UUID, OWN_PID)
        host = polling.HostReader(OWN_PID)
        polling.poll(found, host, self.write, self.stopped, INTERVAL_NS, lambda: self.now_ns)
        kinds = ("often", "seldom", "host", "absent")
        return {kind: [each for each in self.lines if each["kind"] == kind] for kind in kinds}


def test_what_changes_seldom_is_asked_at_every_fifth_poll_and_at_the_end() -> None:
    lines = Run(FakeNvml(), polls=12).go()
    at = [(line["at"] - 1_000) // INTERVAL_NS for line in lines["seldom"]]
    assert at == [0, polling.SELDOM_EVERY, 2 * polling.SELDOM_EVERY, 12]
    assert [(line["at"] - 1_000) // INTERVAL_NS for line in lines["host"]] == at


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


def test_without_a_gpu_the_host_is_polled_alone() -> None:
    lines: list[dict[str, Any]] = []
    stops = iter([False] * 6 + [True])
    polling.poll(None, polling.HostReader(1), lines.append, lambda _: next(stops), INTERVAL_NS)
    assert {line["kind"] for line in lines} == {"host", "absent"}
