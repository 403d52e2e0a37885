"""The peaks of the roofline really move all bytes they are credited with."""

import pytest
import torch

from dsv4kv.ops.launches.pages import THREADS, plan_copy_peak, plan_read_peak, plan_write_peak
from tests.kernels.launches import on_blocks
from tests.kernels.shim.twin import run
from tests.ops.samples import generator

sizes = pytest.mark.parametrize("chunks", [0, 1, 255, 4096, 20_003])
GUARD = 0x7FFF_FFFF


def words(chunks: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (4 * chunks,), generator=generator(chunks)).int()


@sizes
def test_copy_moves_every_chunk_and_no_other(chunks: int) -> None:
    source = words(chunks)
    memory = torch.full((4 * chunks + 8,), GUARD, dtype=torch.int32)
    target = memory[4:-4]
    run(on_blocks(plan_copy_peak(source, target), 3))
    assert torch.equal(target, source)
    assert memory[:4].tolist() + memory[-4:].tolist() == [GUARD] * 8


@sizes
def test_read_sums_every_word_once(chunks: int) -> None:
    source = words(chunks)
    sums = torch.full((3 * THREADS,), GUARD, dtype=torch.int32)
    run(plan_read_peak(source, sums))
    assert (int(sums.long().sum()) - int(source.long().sum())) % 2**32 == 0


@sizes
def test_write_numbers_every_chunk_and_no_other(chunks: int) -> None:
    memory = torch.full((4 * chunks + 8,), GUARD, dtype=torch.int32)
    run(on_blocks(plan_write_peak(memory[4:-4]), 3))
    assert torch.equal(memory[4:-4], torch.arange(chunks).repeat_interleave(4).int())
    assert memory[:4].tolist() + memory[-4:].tolist() == [GUARD] * 8
