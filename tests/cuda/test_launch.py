"""Launching: arguments arrive as the kernel declares them, once loaded nothing is repeated."""

import struct
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.ops.cuda import launch as launching
from dsv4kv.ops.cuda.launch import CudaDriver, Launcher, OneStream, device_of, pack
from dsv4kv.ops.launches.launch import KernelModule, Launch
from tests.cuda.drivers import FakeDriver, OtherGpuTensor, on_gpu

MODULE = KernelModule("some.cuh", (("N", 1),))


def plan(*arguments: Tensor | int) -> Launch:
    return Launch(MODULE, "some_kernel", (3, 2), 64, arguments)


def build(modules: Sequence[KernelModule], architecture: str) -> list[bytes]:
    return [f"{module.source} {module.macros} {architecture}".encode() for module in modules]


def parameters(values: list[int], sizes: tuple[int, ...]) -> list[bytes]:
    """What the driver copies of integers, launched behind one tensor."""
    driver = FakeDriver((8, *sizes))
    Launcher(driver, build).prepare(plan(on_gpu(torch.zeros(1)), *values))()
    return driver.launches[0][3][1:]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=10))
def test_integers_arrive_whether_the_kernel_declares_32_or_64_bits(values: list[int]) -> None:
    as_int = [struct.pack("<i", value) for value in values]
    as_i64 = [struct.pack("<q", value) for value in values]
    assert parameters(values, (4,) * len(values)) == as_int
    assert parameters(values, (8,) * len(values)) == as_i64


def test_a_tensor_arrives_as_its_address() -> None:
    tensor, driver = torch.zeros(4), FakeDriver((8, 8))
    Launcher(driver, build).prepare(plan(on_gpu(tensor), on_gpu(tensor[1:])))()
    assert driver.launches == [
        (
            "some_kernel",
            (3, 2),
            64,
            [struct.pack("<Q", tensor.data_ptr()), struct.pack("<Q", tensor.data_ptr() + 4)],
        )
    ]


@pytest.mark.parametrize(("size", "value"), [(4, 2**32), (4, -(2**31) - 1), (8, 2**63)])
def test_an_integer_that_does_not_fit_is_refused(size: int, value: int) -> None:
    with pytest.raises(DeviceError) as refusal:
        pack(plan(1, value), (4, size))
    assert str(refusal.value) == (
        f"some_kernel: argument 1 ({value}) does not fit into {size} bytes."
    )


@pytest.mark.parametrize("passed", [1, 3])
def test_another_number_of_arguments_is_refused(passed: int) -> None:
    with pytest.raises(DeviceError) as refusal:
        pack(plan(*[5] * passed), (4, 4))
    assert str(refusal.value) == (
        f"some_kernel in some.cuh takes 2 arguments, the plan passes {passed}: "
        "plan and source must agree."
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((torch.zeros(2),), "argument 0 (float32[2]) is on cpu: move it to the GPU."),
        (
            (5, on_gpu(torch.zeros(4, 4).t())),
            "argument 1 (float32[4, 4]) has gaps between its elements: call contiguous().",
        ),
        (
            (on_gpu(torch.zeros(1)), on_gpu(torch.zeros(2), OtherGpuTensor)),
            "argument 1 (float32[2]) is on cuda:1, others are on cuda:0.",
        ),
    ],
    ids=["on the CPU", "not contiguous", "on another GPU"],
)
def test_tensors_that_no_kernel_can_take_are_refused(
    arguments: tuple[Tensor | int, ...], problem: str
) -> None:
    with pytest.raises(DeviceError) as refusal:
        device_of(plan(*arguments))
    assert str(refusal.value) == f"some_kernel: {problem}"


def test_a_module_is_built_and_loaded_once_a_device_and_a_kernel_looked_up_once() -> None:
    driver, tensors = FakeDriver((8,)), [on_gpu(torch.zeros(1)), on_gpu(torch.ones(1))]
    launcher = Launcher(driver, build)
    for tensor in [*tensors, on_gpu(torch.zeros(1), OtherGpuTensor)]:
        launcher.prepare(plan(tensor))()
    launcher.prepare(Launch(MODULE, "another_kernel", (1, 1), 32, (tensors[0],)))
    (hopper,), (ampere,) = build([MODULE], "sm_90a"), build([MODULE], "sm_80")
    assert driver.loads == [(0, hopper), (1, ampere)]
    assert driver.lookups == ["some_kernel", "some_kernel", "another_kernel"]
    assert len(driver.launches) == 3


def test_what_was_compiled_ahead_is_built_in_one_go_and_never_again() -> None:
    driver, other = FakeDriver((8,)), KernelModule("other.cuh", ())
    built = []

    def note(modules: Sequence[KernelModule], architecture: str) -> list[bytes]:
        built.append(list(modules))
        return build(modules, architecture)

    launcher = Launcher(driver, note)
    launcher.load([MODULE, other, MODULE], 0)
    launcher.prepare(plan(on_gpu(torch.zeros(1))))()
    launcher.load([MODULE, other], 0)
    assert [modules for modules in built if modules] == [[MODULE, other]]
    assert driver.loads == [(0, cubin) for cubin in build([MODULE, other], "sm_90a")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_backend_is_advised() -> None:
    with pytest.raises(CudaUnavailable) as refusal:
        launching.run(plan(on_gpu(torch.zeros(1))))
    assert str(refusal.value) == (
        "no CUDA device: torch sees none here. Use the cpu backend, or install a torch built for "
        "CUDA on a machine with an NVIDIA GPU and driver."
    )


def test_without_cuda_bindings_the_package_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.driver", None)
    with pytest.raises(CudaUnavailable) as refusal:
        CudaDriver()
    assert str(refusal.value) == (
        "kernels need the package cuda-bindings, which is not installed: "
        "pip install 'dsv4kv[cuda]'."
    )


def test_a_second_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = (SimpleNamespace(cuda_stream=number) for number in (7, 7, 9))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: next(streams))
    stream, gpu = OneStream(), torch.device("cuda", 0)
    stream.check(torch.device("cpu"))
    stream.check(gpu)
    stream.check(gpu)
    with pytest.raises(DeviceError, match="on stream 0x9, and earlier ones ran on 0x7"):
        stream.check(gpu)
