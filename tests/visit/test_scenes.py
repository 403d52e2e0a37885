"""Launches on a device: what shares memory on the host does so there."""

import pytest
import torch

from dsv4kv.model.schema import TableGroup
from dsv4kv.ops.cuda.compile import compile_module
from dsv4kv.ops.cuda.inspection import sections
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.prepare import DeviceTable, plan_prepare
from tests.cuda.toolchain import needs_nvrtc
from tests.kernels.defects import defect
from tests.kernels.shim import twin
from visit.sanitize import PLANTED
from visit.scenes import Mover

CPU = torch.device("cpu")


def make_tables() -> list[DeviceTable]:
    """Two tables, of which the second has too few blocks."""
    group = TableGroup("csa", ratio=4, entries_per_block=32, layers=(2, 3), lanes=2)
    return [DeviceTable.allocate(group, blocks, 3, 1000, CPU) for blocks in (30, 3)]


def prepare(tables: list[DeviceTable]) -> list[Launch]:
    slots = torch.arange(3)
    fits, does_not = torch.tensor([100, 0, 1]), torch.tensor([1000, 1000, 1])
    return [*plan_prepare(tables, slots, fits), *plan_prepare(tables, slots, does_not)]


def memory(launches: list[Launch]) -> list[list[int]]:
    """What lies in all tensors, by launch and argument."""
    found = (a for launch in launches for a in launch.arguments if isinstance(a, torch.Tensor))
    return [tensor.flatten().tolist() for tensor in found]


def test_launches_that_hand_over_leave_what_they_leave_at_home() -> None:
    launches = prepare(make_tables())
    mover = Mover(CPU)
    moved = [mover.move(launch) for launch in launches]
    for launch in moved:
        twin.run(launch)
    assert memory(launches) == memory(prepare(make_tables())), "the originals are left alone"
    for launch in launches:
        twin.run(launch)
    assert memory(moved) == memory(launches)
    assert memory(moved) != memory(prepare(make_tables()))


def test_a_part_of_memory_stays_a_part() -> None:
    whole = torch.arange(12, dtype=torch.int32).view(3, 4)
    launch = prepare(make_tables())[0]
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
