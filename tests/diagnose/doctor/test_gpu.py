"""What doctor says of GPUs, with every combination of driver, torch and permission."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv4kv.diagnose.doctor import gpu
from dsv4kv.diagnose.doctor.gpu import check_gpu, check_profilers
from dsv4kv.diagnose.doctor.machine import Check

DRIVER = {"driver": "580.65.06", "cuda": "13.0"}
NO_DRIVER = {"driver": None, "cuda": None}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "_DRIVER_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(gpu, "_OWN_STATUS", tmp_path / "status")


def see(monkeypatch: pytest.MonkeyPatch, major: int, minor: int = 0) -> None:
    """Let torch see a GPU."""
    facts = SimpleNamespace(name="NVIDIA H200", major=major, minor=minor, total_memory=140 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def look(versions: dict[str, Any]) -> dict[str, Check]:
    return {check.name: check for check in check_gpu(versions)}


def test_without_a_driver_the_cpu_backend_is_what_runs() -> None:
    checks = look(NO_DRIVER)
    assert set(checks) == {"driver", "GPU"}
    assert {check.status for check in checks.values()} == {"missing"}
    assert "Else the CPU backend runs" in str(checks["driver"].advice)
    assert checks["GPU"].advice is None


def test_a_torch_without_cuda_beside_a_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    check = look(DRIVER)["GPU"]
    assert (check.status, check.found) == (
        "missing",
        f"torch {torch.__version__} is built without CUDA",
    )
    assert "pip install torch --index-url" in str(check.advice)


def test_a_driver_that_torch_cannot_use_is_told_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    check = look(DRIVER)["GPU"]
    assert "built for CUDA 13.2, the driver is for 13.0" in check.found
    assert "update the driver" in str(check.advice)


def test_a_gpu_is_told_by_name_capability_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, 9)
    check = look(DRIVER)["GPU"]
    assert (check.status, check.found) == (
        "good",
        "NVIDIA H200, capability 9.0, 140 GiB, torch for CUDA 13.0",
    )


def test_a_gpu_too_old_for_the_kernels_breaks_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, 7, 5)
    check = look(DRIVER)["GPU"]
    assert check.status == "broken"
    assert check.advice == "kernels need capability 8.0: run with --device cpu."


@pytest.mark.parametrize(
    ("parameter", "capabilities", "status"),
    [
        ("RmProfilingAdminOnly: 0\n", "0000000000000000", "good"),
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", "missing"),
        ("RmProfilingAdminOnly: 1\n", f"{1 << 21:016x}", "good"),
        ("RmProfilingAdminOnly: 1\n", f"{1 << 38:016x}", "good"),
        ("RmProfilingAdminOnly: 1\n", f"{1 << 20:016x}", "missing"),
        ("Something: 1\n", "0000000000000000", "note"),
    ],
)
def test_counters_are_for_those_whom_the_driver_lets(
    tmp_path: Path, parameter: str, capabilities: str, status: str
) -> None:
    (tmp_path / "params").write_text(f"Other: 3\n{parameter}")
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    check = look(DRIVER)["counters"]
    assert check.status == status
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in str(check.advice)) == (status == "missing")


def test_a_driver_that_does_not_tell_who_may_read_counters_is_no_problem() -> None:
    assert look(DRIVER)["counters"].status == "note"


@pytest.mark.parametrize("has_gpu", [True, False])
def test_profilers_that_are_missing_are_advised_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    monkeypatch.setenv("PATH", "")
    checks = list(check_profilers(has_gpu=has_gpu))
    assert [(check.name, check.status) for check in checks] == [
        ("nsys", "missing"),
        ("ncu", "missing"),
    ]
    assert [bool(check.advice) for check in checks] == [has_gpu] * 2


def test_a_profiler_is_told_with_version_and_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2025.5.1.121-3638\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    nsys, _ = check_profilers(has_gpu=True)
    assert (nsys.status, nsys.found) == ("good", f"2025.5.1.121-3638, {tool}")
