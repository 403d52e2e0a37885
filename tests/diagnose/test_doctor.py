"""What doctor says of a machine, by what is there."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from dsv4kv.diagnose import doctor
from dsv4kv.diagnose.doctor import Check
from dsv4kv.errors import CudaUnavailable

Usage = namedtuple("Usage", "total used free")
HERE: dict[str, Any] = {
    "cpu": "AMD EPYC 9554", "cpu_count": 8, "load_1min": 0.4, "governor": "performance",
    "memory_bytes": 32 << 30,
}  # fmt: skip
DRIVER: dict[str, str | None] = {"driver": "580.65.06", "cuda": "13.0"}
NO_DRIVER: dict[str, str | None] = {"driver": None, "cuda": None}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Quiet, with 24 GiB of memory available, an empty disk and no GPU."""
    memory = SimpleNamespace(available=24 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 0, 1 << 39))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_DRIVER_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(doctor, "_OWN_STATUS", tmp_path / "status")


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("changes", "name", "status", "said"),
    [
        ({}, "memory", "good", "32.0 GiB in all, 24.0 GiB available"),
        ({"load_1min": 1.9}, "load", "good", ""),
        ({"load_1min": 2.1}, "load", "note", "other processes run"),
        ({"governor": "powersave"}, "governor", "note", "frequency-set --governor performance"),
        ({"cpu": None, "cpu_count": None}, "CPU", "good", "model unknown, ? to use"),
        ({"governor": None}, "governor", "note", "not available"),
        ({"available": 512 << 20}, "memory", "broken", "needs about 1.00 GiB: end other programs"),
        ({"available": None, "memory_bytes": None}, "memory", "note", "not available"),
    ],
)
def test_the_host_is_judged(
    changes: dict[str, Any], name: str, status: str, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if "available" in changes:

        def look() -> SimpleNamespace:
            if changes["available"] is None:
                raise OSError
            return SimpleNamespace(available=changes["available"])

        monkeypatch.setattr(psutil, "virtual_memory", look)
    checks = by_name(doctor.check_machine(HERE | changes, tmp_path / "results"))
    assert checks[name].status == status
    assert said in f"{checks[name].found} {checks[name].advice}"
    assert bool(checks[name].advice) == (status in ("note", "broken") and "not avail" not in said)


def test_a_folder_is_judged_by_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    assert doctor.check_folder("t", "n", results / "a" / "b", "e", "a").status == "good"
    assert not results.exists()
    results.write_text("a file")
    check = doctor.check_folder("t", "n", results, "e", "name another")
    assert (check.status, check.advice) == ("missing", "name another")
    assert by_name(doctor.check_machine(HERE, results))["results"].status == "missing"
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(results))
    assert by_name(doctor.check_machine(HERE, results))["results"].status == "broken"
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 0, 5 << 20))
    check = doctor.check_folder("t", "n", tmp_path, "e", "a")
    assert check.status == "missing"
    assert check.found.endswith("5.00 MiB free")


def test_packages_are_told_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(*_: object) -> Any:
        raise CudaUnavailable("it is not here.")

    def fail(_: str) -> None:
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    checks = by_name(doctor.check_software())
    assert (checks["torch"].status, checks["torch"].found) == ("good", torch.__version__)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("dsv4kv.ops.cuda.compile.nvrtc_version", absent)
    monkeypatch.setattr("dsv4kv.ops.cuda.inspection.find_disassembler", absent)
    checks = by_name(doctor.check_software())
    assert checks["kernel cache"].status == "missing"
    assert (checks["NVRTC"].found, checks["NVRTC"].status) == ("it is not here.", "missing")
    assert checks["NVRTC"].advice == "pip install 'dsv4kv[cuda]'"
    assert checks["nvdisasm"].advice == "pip install nvidia-cuda-nvdisasm"
    monkeypatch.setattr(doctor, "import_module", fail)
    check = by_name(doctor.check_software())["torch"]
    assert check.status == "broken"
    assert "(OSError: libtorch_cpu.so: cannot open" in check.found
    assert check.advice == "install it again: pip install --force-reinstall torch"


@pytest.mark.parametrize("has_gpu", [True, False])
def test_profilers_are_advised_where_they_could_run(
    has_gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2025.5.1.121-3638\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    nsys, ncu = doctor.check_profilers(has_gpu=has_gpu)
    assert (nsys.status, nsys.found) == ("good", f"2025.5.1.121-3638, {tool}")
    assert (ncu.status, bool(ncu.advice)) == ("missing", has_gpu)


@pytest.mark.parametrize(
    ("versions", "capability", "built", "status", "said"),
    [
        (NO_DRIVER, None, None, "missing", "none"),
        (DRIVER, None, None, "missing", "is built without CUDA pip install torch if needed"),
        (DRIVER, None, "13.2", "missing", "built for CUDA 13.2, the driver is for 13.0"),
        (DRIVER, (9, 0), "13.0", "good", "NVIDIA H200, capability 9.0, 140 GiB, torch for CUDA"),
        (DRIVER, (7, 5), "13.0", "broken", "kernels need capability 8.0: run with --device cpu."),
    ],
)
def test_a_gpu_is_told_by_driver_and_torch(
    versions: dict[str, Any], capability: tuple[int, int] | None, built: str | None, status: str,
    said: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.version, "cuda", built)
    if capability:
        facts = SimpleNamespace(name="NVIDIA H200", total_memory=140 << 30)
        facts.major, facts.minor = capability
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    checks = by_name(doctor.check_gpu(versions))
    assert ("counters" in checks) == (versions is DRIVER)
    assert checks["GPU"].status == status
    assert said.partition(" pip")[0] in f"{checks['GPU'].found} {checks['GPU'].advice}"
    assert ("Else the CPU backend runs" in str(checks["driver"].advice)) == (versions is NO_DRIVER)


@pytest.mark.parametrize(
    ("parameter", "capabilities", "status"),
    [
        ("RmProfilingAdminOnly: 0\n", 0, "good"), ("RmProfilingAdminOnly: 1\n", 0, "missing"),
        ("RmProfilingAdminOnly: 1\n", 1 << 21, "good"),
        ("RmProfilingAdminOnly: 1\n", 1 << 38, "good"),
        ("RmProfilingAdminOnly: 1\n", 1 << 20, "missing"), (None, 0, "note"),
    ],
)  # fmt: skip
def test_counters_are_for_those_whom_the_driver_lets(
    tmp_path: Path, parameter: str | None, capabilities: int, status: str
) -> None:
    if parameter:
        (tmp_path / "params").write_text(f"Other: 3\n{parameter}")
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities:016x}\n")
    check = by_name(doctor.check_gpu(DRIVER))["counters"]
    assert check.status == status
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in str(check.advice)) == (status == "missing")
