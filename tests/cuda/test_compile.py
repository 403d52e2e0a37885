"""Compiling: what goes wrong is a sentence that says what to do."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.files import shipped
from dsv4kv.ops.cuda import compile as cc
from dsv4kv.ops.cuda import compile as compiling
from dsv4kv.ops.launches import KernelModule
from tests.cuda.toolchain import PAGE_COPY, needs_nvrtc


@pytest.fixture
def forget_nvrtc() -> Iterator[None]:
    compiling._nvrtc.cache_clear()
    compiling.nvrtc_version.cache_clear()
    yield
    compiling._nvrtc.cache_clear()
    compiling.nvrtc_version.cache_clear()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for ``kernels/``."""
    shutil.copy(shipped("kernels") / "common.cuh", tmp_path)
    monkeypatch.setattr(compiling, "shipped", lambda _: tmp_path)
    return tmp_path


@needs_nvrtc
@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        *((each, "is no architecture: write sm_80") for each in ("90a", "sm_9", "sm_90x", "")),
        ("sm_75", r"^sm_75 is too old for the kernels: they need sm_80 \(A100\) or newer"),
        ("sm_999", r"does not compile for sm_999, only for sm_80,.* install a newer one \(pip"),
    ],
)
def test_an_architecture_that_cannot_be_is_refused(architecture: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        cc.check_architecture(architecture)


@needs_nvrtc
def test_source_that_does_not_compile_is_told_with_file_line_and_log(sources: Path) -> None:
    (sources / "wrong.cuh").write_text('#include "common.cuh"\nDSV_KERNEL void k() {\n  x = 1;\n}')
    with pytest.raises(DeviceError) as refusal:
        cc.compile_module(KernelModule("wrong.cuh", ()), "sm_90a")
    first, *log = str(refusal.value).splitlines()
    version = cc.nvrtc_version()
    assert first == f"wrong.cuh does not compile for sm_90a with NVRTC {version}:"
    assert log[0] == f'{sources}/wrong.cuh(3): error: identifier "x" is undefined'


@needs_nvrtc
@pytest.mark.usefixtures("forget_nvrtc")
def test_without_nvrtc_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    def refuse() -> None:
        raise RuntimeError("Failure finding libnvrtc.so")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", refuse)
    with pytest.raises(CudaUnavailable) as refusal:
        cc.compile_module(PAGE_COPY, "sm_90a")
    assert str(refusal.value) == (
        "kernels need NVRTC (libnvrtc.so), which is in no place where cuda-bindings looks: "
        "pip install 'dsv4kv[cuda]', which brings nvidia-cuda-nvrtc."
    )
