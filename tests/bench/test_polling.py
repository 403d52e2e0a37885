"""What the polling process asks: the host below a folder that the test fills, and a fake NVML."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from dsv4kv.bench import polling
from dsv4kv.runs.parts import GpuSamples, HostSamples
from tests.bench.fake_nvml import OTHER_UUID, OWN_PID, UUID, FakeNvml, refuse

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


INTERVAL_NS = 40_000_000


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
