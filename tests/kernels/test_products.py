"""What stands for tensor cores and asynchronous copies on a CPU does what they are said to do."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dsv4kv.ops.launches import KernelModule, Launch
from tests.kernels.launches import each_order
from tests.kernels.shim.apart import assert_each_fails
from tests.kernels.shim.twin import run
from tests.ops.samples import generator

_SOURCE = Path(__file__).with_name("shim") / "products.cuh"
KINDS = {"e4m3": 0, "bf16": 1}
COPY_MISTAKES = {1: "other bytes", 2: "a copy that nobody waits for", 3: "misaligned copy"}


def launch(kernel: str, *arguments: Tensor | int) -> Launch:
    """By one warp with 1 KiB of shared memory."""
    return Launch(KernelModule(str(_SOURCE), ()), kernel, (1, 1), 32, arguments, shared_bytes=1024)


def random_codes(kind: str, rows: int, seed: int) -> Tensor:
    """Rows of 32 bytes: every e4m3 but NaN, or bf16 around 1."""
    if kind == "bf16":
        return torch.randn(rows, 16, generator=generator(seed)).bfloat16()
    codes = torch.randint(0, 127, (rows, 32), generator=generator(seed))
    signs = torch.randint(0, 2, (rows, 32), generator=generator(seed + 1)) * 128
    return (codes + signs).to(torch.uint8).view(torch.float8_e4m3fn)


@each_order
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_whole_matrices_rounded_once(kind: str, reverse: bool) -> None:
    a, b = random_codes(kind, 16, seed=1), random_codes(kind, 8, seed=3)
    before = torch.randn(16, 8, generator=generator(5))
    sums = before.clone()
    run(launch("multiply", a, b, sums, KINDS[kind]), reverse=reverse)
    exact = before.double() + a.double() @ b.double().T
    if kind == "e4m3":  # in two halves, each of which is rounded
        halves = a.double().abs() @ b.double().abs().T
        assert ((sums - exact).abs() <= 2.0**-23 * halves).all()
    else:
        assert torch.equal(sums, exact.float())


@pytest.mark.parametrize("transposed", [False, True])
def test_lanes_get_their_elements_of_four_matrices(transposed: bool) -> None:
    rows = torch.randn(4, 8, 8, generator=generator(7)).bfloat16()
    words = torch.zeros(4, 32, dtype=torch.int32)
    run(launch("load", rows, words, int(transposed)))
    expected = rows.transpose(1, 2) if transposed else rows
    assert torch.equal(words.view(torch.bfloat16).view(4, 8, 8), expected)


def run_copy(mistake: int) -> None:
    """Copy 1 KiB with a mistake; raises where something else arrives."""
    source = torch.arange(1024 + 16).to(torch.uint8)
    target = torch.zeros(1024, dtype=torch.uint8)
    run(launch("copy", source, target, mistake))
    expected = source[:1024].clone()
    expected[512 + 16 : 512 + 32] = 0
    assert torch.equal(target, expected), f"other bytes: {target[:4].tolist()}"


def test_copies_arrive_when_they_are_waited_for_and_of_nothing_come_zeros() -> None:
    run_copy(0)


def test_mistakes_of_copies_are_found() -> None:
    assert_each_fails(__name__, {f"run_copy({i})": each for i, each in COPY_MISTAKES.items()})


_GROUPS = Path(__file__).with_name("shim") / "groups.cuh"
GROUP_MISTAKES = {
    1: "products that nobody waits for",
    2: "a matrix that does not begin with its eight lines",
    3: "a matrix outside shared memory",
    4: "other sums",
}
HAND_OVERS = {
    1: "a barrier that not every thread reaches",
    2: "a barrier of two numbers of threads",
    3: "a barrier that not every thread reaches",
}


def group_launch(kernel: str, *arguments: Tensor | int) -> Launch:
    """By one warpgroup, or two warps, with 48 KiB of shared memory."""
    threads = 64 if kernel == "hand_over" else 128
    module = KernelModule(str(_GROUPS), ())
    return Launch(module, kernel, (1, 1), threads, arguments, shared_bytes=48 << 10)


def run_group(by_columns: bool, mistake: int = 0, *, reverse: bool = False) -> None:
    """Multiply 64 rows of 64 channels; raises where sums are others."""
    rows = torch.randn(64, 64, generator=generator(11)).bfloat16()
    others = torch.randn(*((64, 256) if by_columns else (32, 64)), generator=generator(12))
    others = others.bfloat16()
    right = others.double() if by_columns else others.double().T
    sums = torch.randn(64, right.shape[1], generator=generator(13))
    exact = sums.double() + rows.double() @ right
    kernel = "multiply_columns" if by_columns else "multiply_rows"
    run(group_launch(kernel, rows, others, sums, mistake), reverse=reverse)
    sizes = rows.double().abs() @ right.abs() + 1
    assert ((sums - exact).abs() <= 2.0**-22 * sizes).all(), "other sums"


@each_order
@pytest.mark.parametrize("by_columns", [False, True])
def test_a_warpgroup_multiplies_matrices_in_shared_memory(by_columns: bool, reverse: bool) -> None:
    run_group(by_columns, reverse=reverse)


def run_hand_over(mistake: int) -> None:
    """One warp hands numbers to another; raises where others arrive."""
    seen = torch.zeros(4, 32, dtype=torch.int32)
    run(group_launch("hand_over", seen, mistake), reverse=mistake == 1)
    expected = torch.arange(4)[:, None] * 100 + torch.arange(32)
    assert torch.equal(seen, expected.int()), f"other numbers: {seen[:, 0].tolist()}"


def test_who_waits_by_name_sees_what_the_others_brought() -> None:
    run_hand_over(0)


def test_mistakes_of_warpgroups_are_found() -> None:
    calls = {f"run_group(False, {i}, reverse=True)": each for i, each in GROUP_MISTAKES.items()}
    calls |= {f"run_hand_over({i})": each for i, each in HAND_OVERS.items()}
    assert_each_fails(__name__, calls)
