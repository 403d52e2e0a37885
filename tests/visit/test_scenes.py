"""Launches on a device: what shares memory on the host does so there."""

import pytest
import torch

from dsv4kv.ops.cuda.compile import compile_module
from dsv4kv.ops.cuda.inspection import sections
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.launches.pages import plan_copy_peak
from tests.cuda.toolchain import needs_nvrtc
from tests.kernels.defects import defect
from tests.kernels.shim import twin
from visit.sanitize import PLANTED
from visit.scenes import Mover

CPU = torch.device("cpu")


def handed_over() -> list[Launch]:
    """What the first launch copies the second copies further."""
    first = torch.arange(4096).to(torch.uint8)
    second, third = torch.zeros_like(first), torch.zeros_like(first)
    return [plan_copy_peak(first, second), plan_copy_peak(second, third)]


def memory(launches: list[Launch]) -> list[list[int]]:
    """What lies in all tensors, by launch and argument."""
    found = (a for launch in launches for a in launch.arguments if isinstance(a, torch.Tensor))
    return [tensor.flatten().tolist() for tensor in found]


def test_launches_that_hand_over_leave_what_they_leave_at_home() -> None:
    launches = handed_over()
    mover = Mover(CPU)
    moved = [mover.move(launch) for launch in launches]
    for launch in moved:
        twin.run(launch)
    assert memory(launches) == memory(handed_over()), "the originals are left alone"
    for launch in launches:
        twin.run(launch)
    assert memory(moved) == memory(launches)
    assert memory(moved) != memory(handed_over())


def test_a_part_of_memory_stays_a_part() -> None:
    whole = torch.arange(12, dtype=torch.int32).view(3, 4)
    launch = handed_over()[0]
    part = Launch(launch.module, launch.kernel, (1, 1), 32, (whole[1:], whole))
    first, second = Mover(CPU).move(part).arguments
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert first.tolist() == whole[1:].tolist()
    assert first.data_ptr() == second.data_ptr() + 16 != whole[1:].data_ptr()


@needs_nvrtc
@pytest.mark.parametrize("kernel", [kernel for _, kernel in PLANTED.values()])
def test_what_is_planted_compiles_for_a_gpu(kernel: str) -> None:
    memory = torch.zeros(1024, dtype=torch.uint8)
    module = defect(kernel, memory, memory).module
    assert f".text.{kernel}" in sections(compile_module(module, "sm_90a"))
