"""The harness itself: whatever it is there to notice, it notices."""

import pytest
import torch

from tests.kernels.defects import THREADS, defect
from tests.kernels.launches import each_order
from tests.kernels.shim.apart import run_apart
from tests.kernels.shim.twin import run


def moved_right(*, barrier: bool, reverse: bool) -> bool:
    source = torch.arange(THREADS, dtype=torch.uint8)
    target = torch.zeros_like(source)
    run(defect("move_right", source, target, barrier=barrier), reverse=reverse)
    return torch.equal(target, source.roll(1))


@each_order
def test_barrier_makes_shared_memory_visible_in_either_order(reverse: bool) -> None:
    assert moved_right(barrier=True, reverse=reverse)


def test_missing_barrier_shows_in_reversed_order() -> None:
    assert not moved_right(barrier=False, reverse=True)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("load_misaligned", "shim: misaligned vector load (block 0, thread 0)"),
        ("store_misaligned", "shim: misaligned vector store (block 0, thread 0)"),
        ("split_at_a_barrier", "shim: a barrier that not every thread reaches"),
    ],
)
def test_what_a_gpu_refuses_aborts_and_says_where(kernel: str, message: str) -> None:
    done = run_apart(
        f"tests.kernels.defects:run_defect('{kernel}', sanitized=False)", sanitized=False
    )
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("read_outside", "heap-buffer-overflow"),
        ("write_outside", "heap-buffer-overflow"),
        ("shift_too_far", "shift exponent 77 is too large"),
    ],
)
def test_sanitizers_name_the_line_of_a_defect(kernel: str, message: str) -> None:
    done = run_apart(
        f"tests.kernels.defects:run_defect('{kernel}', sanitized=True)", sanitized=True
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "defects.cuh:" in done.stderr
