"""Copies on the CPU twin: objects of a tier, and the peaks that gathers are compared with."""

import pytest
import torch

from dsv4kv.ops.launches.pages import (
    THREADS,
    Way,
    plan_copy_peak,
    plan_objects,
    plan_read_peak,
    plan_write_peak,
    pool_table,
)
from tests.kernels.launches import each_order, on_blocks
from tests.kernels.shim.twin import run
from tests.ops.samples import generator

PIECE, UNITS = 1728, (5, 7, 6)  # bytes of a layer, and pages of each layer's pool
OBJECT = PIECE * len(UNITS)
IDS = torch.tensor([[4, 0, 2], [6, 5, 0], [1, 3, 5]])


def pools() -> list[torch.Tensor]:
    return [
        torch.randint(0, 256, (units, PIECE), dtype=torch.uint8, generator=generator(units))
        for units in UNITS
    ]


@each_order
@pytest.mark.parametrize("gap", [0, 4096 - OBJECT % 4096])
@pytest.mark.parametrize("blocks", [1, 40])
def test_objects_are_gathered_piece_by_piece_and_put_back(
    gap: int, blocks: int, reverse: bool
) -> None:
    source, stride = pools(), OBJECT + gap
    memory = torch.full((3 * stride + 128,), 0xA5, dtype=torch.uint8)
    out = memory[64:-64]
    launch = plan_objects("take", pool_table(source), IDS, out, PIECE, stride)
    run(on_blocks(launch, blocks), reverse=reverse)
    assert (torch.cat([memory[:64], memory[-64:]]) == 0xA5).all()
    objects = out.view(3, stride)
    for number in range(3):
        for layer, pool in enumerate(source):
            piece = objects[number, layer * PIECE : (layer + 1) * PIECE]
            assert torch.equal(piece, pool[IDS[layer, number]])
    assert (objects[:, OBJECT:] == 0xA5).all()

    target = [torch.zeros_like(pool) for pool in source]
    run(plan_objects("put", pool_table(target), IDS, out, PIECE, stride), reverse=reverse)
    for layer, (pool, whole) in enumerate(zip(target, source, strict=True)):
        expected = torch.zeros_like(whole)
        expected[IDS[layer]] = whole[IDS[layer]]
        assert torch.equal(pool, expected)


@pytest.mark.parametrize("nowhere", [-1, 7, 2**60, -(2**63)])
@pytest.mark.parametrize("way", ["take", "put"])
def test_pages_that_do_not_exist_are_neither_read_nor_written(nowhere: int, way: Way) -> None:
    there = pools()
    before = [pool.clone() for pool in there]
    objects = torch.full((OBJECT,), 0x5A, dtype=torch.uint8)
    ids = torch.full((3, 1), nowhere)
    run(plan_objects(way, pool_table(there), ids, objects, PIECE, OBJECT))
    assert (objects == 0x5A).all()
    assert all(torch.equal(*pair) for pair in zip(there, before, strict=True))


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
