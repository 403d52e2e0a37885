"""What doctor says of packages."""

import sys
from pathlib import Path

import pytest

from dsv4kv.diagnose.doctor import software
from dsv4kv.diagnose.doctor.machine import Check
from dsv4kv.diagnose.doctor.software import check_peers, check_software
from dsv4kv.errors import CudaUnavailable


def look() -> dict[str, Check]:
    return {check.name: check for check in check_software()}


def test_what_is_needed_is_told_with_its_version() -> None:
    checks = look()
    for name in ("torch", "numpy"):
        assert (checks[name].status, checks[name].found) == (
            "good",
            sys.modules[name].__version__,
        )


def test_a_package_that_cannot_be_imported_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(software, "import_module", fail)
    check = look()["torch"]
    assert check.status == "broken"
    assert "(OSError: libtorch_cpu.so: cannot open" in check.found
    assert check.advice == "install it again: pip install --force-reinstall torch"


def test_without_a_compiler_for_kernels_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> str:
        raise CudaUnavailable("kernels need NVRTC.")

    monkeypatch.setattr("dsv4kv.ops.cuda.compile.nvrtc_version", absent)
    check = look()["NVRTC"]
    assert (check.status, check.found) == ("missing", "kernels need NVRTC.")
    assert check.advice == "pip install 'dsv4kv[cuda]'"


def test_a_kernel_cache_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "file"))
    assert look()["kernel cache"].status == "missing"
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path / "folder"))
    assert look()["kernel cache"].status == "good"


def test_a_disassembler_that_is_missing_is_advised_by_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> Path:
        raise CudaUnavailable(f"{name} is not here.")

    monkeypatch.setattr("dsv4kv.ops.cuda.inspection.find_tool", absent)
    check = look()["nvdisasm"]
    assert (check.status, check.advice) == ("missing", "pip install nvidia-cuda-nvdisasm")


def test_peers_are_found_and_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    checks = {check.name: check for check in check_peers(has_gpu=True)}
    assert (checks["vllm"].status, checks["vllm"].enables) == ("good", "bench --backend vllm")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_peers_that_are_missing_are_advised_where_they_could_run(has_gpu: bool) -> None:
    checks = {check.name: check for check in check_peers(has_gpu=has_gpu)}
    assert set(checks) == {"vllm", "sglang", "flash_mla", "flag_gems"}
    for name in ("vllm", "sglang", "flag_gems"):
        if checks[name].status == "missing":
            assert bool(checks[name].advice) == has_gpu
    assert checks["flash_mla"].advice is None
