"""The harness itself: whatever it is there to notice, it notices."""

import pytest
import torch

from tests.kernels.defects import THREADS, defect, run_exchange
from tests.kernels.launches import each_order
from tests.kernels.shim.apart import assert_each_fails
from tests.kernels.shim.twin import run

REFUSED = {
    "load_misaligned": "shim: misaligned vector load (block 0, thread 0)",
    "store_misaligned": "shim: misaligned vector store (block 0, thread 0)",
    "split_at_a_barrier": "shim: a barrier that not every thread reaches",
}
CLUSTER_MISTAKES = {
    1: "shim: a wait for the cluster without an arrival",
    2: "shim: a barrier of bytes that nobody started",
    3: "shim: a wait for bytes that nobody copies",
    4: "shim: misaligned bulk copy",
    5: "shim: a copy that nobody waits for",
    6: "other bytes: [255, 255",
    7: "shim: a rank outside the cluster",
    8: "shim: a barrier that not every thread reaches",
    9: "shim: shared memory of a block that has ended",
    10: "shim: a cluster barrier without a wait before the next",
    11: "shim: shared memory of a block that has not begun",
}
"""As bad/cluster_defects.cuh numbers them."""


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


def test_what_a_gpu_refuses_aborts_and_says_where() -> None:
    said = {f"run_defect({name!r}, sanitized=False)": message for name, message in REFUSED.items()}
    assert_each_fails("tests.kernels.defects", said)


def test_blocks_of_a_cluster_see_each_others_memory_and_copies_arrive() -> None:
    run_exchange(0)


def test_mistakes_of_a_cluster_are_found() -> None:
    said = {f"run_exchange({i})": message for i, message in CLUSTER_MISTAKES.items()}
    assert_each_fails("tests.kernels.defects", said)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("read_outside", "heap-buffer-overflow"),
        ("write_outside", "heap-buffer-overflow"),
        ("shift_too_far", "shift exponent 77 is too large"),
    ],
)
def test_sanitizers_name_the_line_of_a_defect(kernel: str, message: str) -> None:
    call = f"run_defect({kernel!r}, sanitized=True)"
    assert_each_fails("tests.kernels.defects", {call: message}, sanitized=True)
    assert_each_fails("tests.kernels.defects", {call: "defects.cuh:"}, sanitized=True)
