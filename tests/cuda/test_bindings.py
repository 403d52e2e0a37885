"""``cuda.bindings`` itself, over a driver library of our own: what reaches the driver."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4kv.ops.cuda.compile import compile_module
from dsv4kv.ops.cuda.inspection import sections
from dsv4kv.ops.launches.catalogue import catalogue
from dsv4kv.ops.launches.launch import KernelModule
from dsv4kv.ops.spec import VARIANTS
from tests.cuda.toolchain import needs_bindings, needs_nvrtc
from tests.examples import FULL
from tests.kernels.shim.apart import run_each_apart

pytestmark = [
    needs_bindings,
    pytest.mark.skipif(
        sys.platform != "linux", reason="cuda-bindings loads libcuda.so.1 on Linux"
    ),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build a driver library"),
]

# function, grid, block, shared bytes, stream, no extra, count, scale
CALL = "0x22 7 2 1 256 1 1 0 0x77 1 3 1.5"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines that the driver library and ``launch_fill`` print."""
    folder = tmp_path_factory.mktemp("driver")
    source, target = str(Path(__file__).with_name("libcuda.c")), str(folder / "libcuda.so.1")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", target, source, "-ldl"]
    subprocess.run(command, check=True)
    ((code, said),) = run_each_apart("tests.cuda.launch_fill", [f"main({target!r})"])
    assert code == 0, said
    return said.splitlines()


def test_grid_block_stream_and_arguments_reach_the_kernel_at_every_call(told: list[str]) -> None:
    assert told[:3] == [CALL, CALL, "[-5, -5, -5, 0]"]


def test_a_dependent_launch_says_so_and_is_otherwise_the_same(told: list[str]) -> None:
    call = f"attribute 6 = 1; {CALL}"  # programmatic stream serialization, in cuda.h
    assert told[3:6] == [call, call, "[-5, -5, -5, 0]"]


def test_a_cluster_gets_its_blocks_and_the_shared_memory_that_it_asks_for(told: list[str]) -> None:
    call = f"attribute 4 = 1 2 1; {CALL.replace(' 1 1 0 ', ' 1 1 75000 ')}"
    assert told[6:10] == ["function attribute: 8 = 75000", call, call, "[-5, -5, -5, 0]"]


def test_more_shared_memory_than_there_is_is_a_sentence(told: list[str]) -> None:
    assert told[10] == "function attribute: 8 = 1048576"
    assert told[11] == (
        "giving fill 1048576 B of shared memory failed with CUDA_ERROR_INVALID_VALUE: "
        "no such value."
    )


def test_a_kernel_that_is_not_in_the_module_is_a_sentence(told: list[str]) -> None:
    assert told[12] == (
        "cuModuleGetFunction(nosuch) failed with CUDA_ERROR_NOT_FOUND: named symbol not found."
    )


def test_machine_code_that_the_driver_refuses_advises_a_newer_driver(told: list[str]) -> None:
    assert told[13] == (
        "cuModuleLoadData failed with CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid "
        "(the driver is older than NVRTC: update the driver)."
    )


def launched_kernels() -> dict[KernelModule, set[str]]:
    kernels: dict[KernelModule, set[str]] = {}
    for example in catalogue():
        launch = example.launch
        if launch.module.source == "flush.cuh":
            kernels.setdefault(launch.module, set()).add(launch.kernel)
    return kernels


@needs_nvrtc
def test_a_module_has_the_kernels_that_plans_launch_and_no_other() -> None:
    found = launched_kernels()
    assert len(found) > len(VARIANTS["flush"])
    for module, kernels in list(found.items())[:: 1 if FULL else 7]:  # seconds each
        names = sections(compile_module(module, "sm_90a"))
        code = {name for name in names if name.startswith(".text.")}
        assert code == {f".text.{kernel}" for kernel in kernels}
