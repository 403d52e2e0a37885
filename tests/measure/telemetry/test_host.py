"""The host's state, below a folder that the test fills."""

import os
from pathlib import Path

import psutil
import pytest

from dsv4kv.measure.telemetry.readings import HostReader, memory_peak_bytes

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


def read(root: Path) -> HostReader:
    return HostReader(PID, root / "sys/devices/system/cpu")


def test_processor_times_and_the_clock_of_the_runs_cpu_are_told(root: Path) -> None:
    host = read(root)
    found = host.read()
    assert found["cpu_mhz"] == 3_725
    assert found["machine_busy_ns"] == 1_560 * TICK_NS  # idle and waiting left out
    assert found["own_cpu_ns"] == 200 * TICK_NS
    assert found["load_1min"] >= 0
    assert host.absent == {}


def test_what_a_machine_does_not_tell_is_absent_with_the_reason(root: Path) -> None:
    (root / CLOCK).unlink()
    (root / "proc/stat").write_text("nothing\nbtime 1\n")
    host = read(root)
    assert set(host.read()) == {"load_1min", "own_cpu_ns"}
    assert host.absent == {
        "cpu_mhz": "No such file or directory",
        "machine_busy_ns": "not in the expected format",
    }


def test_a_process_that_has_ended_is_absent_and_the_machine_is_not(root: Path) -> None:
    (root / f"proc/{PID}/stat").unlink()
    host = read(root)
    assert set(host.read()) == {"load_1min", "machine_busy_ns"}
    assert set(host.absent) == {"cpu_mhz", "own_cpu_ns"}
    assert "process" in host.absent["own_cpu_ns"]


def test_a_machine_without_proc_tells_its_load_alone(root: Path) -> None:
    (root / "proc/stat").unlink()
    (root / f"proc/{PID}/stat").unlink()
    assert set(read(root).read()) == {"load_1min"}


def test_the_memory_peak_is_at_least_what_was_just_taken() -> None:
    before = memory_peak_bytes()
    taken = bytearray(b"x") * (64 << 20)
    assert memory_peak_bytes() >= max(before, len(taken))
