"""Launching: what reaches a driver library of our own through ``cuda.bindings``, and refusals."""

import ctypes
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.cuda.launch import OneStream, device_of, pack
from dsv4kv.ops.launches import KernelModule, Launch
from tests.cuda.launch_fill import OtherGpuTensor, on_gpu
from tests.cuda.toolchain import needs_bindings
from tests.kernels.shim.apart import run_each_apart

# function, grid, block, shared bytes, stream, no extra, count, scale
CALL = "0x22 7 2 1 256 1 1 0 0x77 1 3 1.5"
TOO_MUCH = (
    "giving fill 1048576 B of shared memory failed with CUDA_ERROR_INVALID_VALUE: no such value."
)
OLD_DRIVER = (
    "cuModuleLoadData failed with CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid "
    "(the driver is older than NVRTC: update the driver)."
)


def plan(*arguments: Tensor | int) -> Launch:
    return Launch(KernelModule("some.cuh", ()), "some_kernel", (3, 2), 64, arguments)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The driver library."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("cuda-bindings loads libcuda.so.1 on Linux, and gcc builds it")
    folder = tmp_path_factory.mktemp("driver")
    source, target = str(Path(__file__).with_name("libcuda.c")), str(folder / "libcuda.so.1")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", target, source, "-ldl"]
    subprocess.run(command, check=True)
    return target


def lines_of(call: str) -> list[str]:
    """What a function of ``launch_fill`` prints, and the driver library."""
    ((code, said),) = run_each_apart("tests.cuda.launch_fill", [call])
    assert code == 0, said
    return said.splitlines()


@needs_bindings
def test_what_a_launch_asks_for_reaches_the_driver_and_refusals_are_sentences(
    library: str,
) -> None:
    """As cuda.h has them: attribute 6 is programmatic stream serialization, 4 the cluster."""
    dependent = f"attribute 6 = 1; {CALL}"
    cluster = f"attribute 4 = 1 2 1; {CALL.replace(' 1 1 0 ', ' 1 1 75000 ')}"
    filled = "[-5, -5, -5, 0]"
    assert lines_of(f"main({library!r})") == [
        *(CALL, CALL, filled),
        *(dependent, dependent, filled),
        *("function attribute: 8 = 75000", cluster, cluster, filled),
        "function attribute: 8 = 1048576",
        TOO_MUCH,
        "cuModuleGetFunction(nosuch) failed with CUDA_ERROR_NOT_FOUND: named symbol not found.",
        OLD_DRIVER,
    ]


@needs_bindings
def test_a_module_is_built_once_a_device_and_ahead_in_one_go(library: str) -> None:
    assert lines_of(f"load_often({library!r})") == [
        "sm_90a fill",
        "sm_90a other last",
        "sm_80 other",
    ]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=10))
def test_integers_arrive_whether_the_kernel_declares_32_or_64_bits(values: list[int]) -> None:
    packed = pack(plan(*values))
    places = list(packed)[len(values) :]
    read = [ctypes.string_at(place, 8) for place in places]
    assert read == [struct.pack("<q", value) for value in values]
    assert [each[:4] for each in read] == [struct.pack("<i", value) for value in values]


@pytest.mark.parametrize(
    "other",
    [torch.zeros(2), on_gpu(torch.zeros(4, 4).t()), on_gpu(torch.zeros(2), OtherGpuTensor)],
    ids=["on the CPU", "not contiguous", "on another GPU"],
)
def test_tensors_that_no_kernel_can_take_are_refused(other: Tensor) -> None:
    shown = rf"^some_kernel: float32\[.*\] on {other.device} is not on the GPU of the others, or"
    with pytest.raises(DeviceError, match=shown):
        device_of(plan(on_gpu(torch.zeros(1)), 5, other))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_backend_is_advised() -> None:
    with pytest.raises(CudaUnavailable, match="torch sees none here"):
        launching.run(plan(on_gpu(torch.zeros(1))))


def test_a_second_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = (SimpleNamespace(cuda_stream=number) for number in (7, 7, 9))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: next(streams))
    stream, gpu = OneStream(), torch.device("cuda", 0)
    stream.check(torch.device("cpu"))
    stream.check(gpu)
    stream.check(gpu)
    with pytest.raises(DeviceError, match="on stream 0x9, and earlier ones ran on 0x7"):
        stream.check(gpu)
