"""What kernels promise of their machine code, and how a broken promise is told."""

from fnmatch import fnmatchcase

import pytest

from dsv4kv.ops.cuda.survey import broken_promises
from dsv4kv.ops.launches.catalogue import PROMISES, catalogue
from tests.cuda.findings import finding

BOOKKEEPING = {"judge_blocks", "prepare_blocks", "completed_entries", "do_nothing"}
CHOICES = {"select_topk", "merge_topk", "select_blocks", "merge_blocks"}


def test_a_kernel_that_keeps_its_promises_is_no_problem() -> None:
    assert list(broken_promises([finding()])) == []


@pytest.mark.parametrize(
    ("local_bytes", "accesses"), [(8, {}), (0, {"LDL.64": 1}), (0, {"STL.32": 1})]
)
def test_local_memory_is_a_problem(local_bytes: int, accesses: dict[str, int]) -> None:
    found = finding(local_bytes=local_bytes, accesses={"LDG.128": 1, "STG.128": 1} | accesses)
    (problem,) = broken_promises([found])
    assert problem == (
        f"page_copy fp8 × 32 on sm_90a uses {local_bytes} B of local memory a thread "
        "(spilled registers or arrays indexed at run time)."
    )


def test_narrow_loads_are_a_problem() -> None:
    found = finding(accesses={"LDG.32": 4, "LDG.64": 2, "STG.128": 1})
    assert list(broken_promises([found])) == [
        "page_copy fp8 × 32 on sm_90a has no load of 128 bits, only 32 and 64."
    ]


@pytest.mark.parametrize(
    ("accesses", "told"), [({"STG.32": 4, "STG.128": 1}, "32 and 128"), ({}, "none")]
)
def test_one_narrow_store_is_a_problem(accesses: dict[str, int], told: str) -> None:
    found = finding(accesses={"LDG.128": 1} | accesses)
    assert list(broken_promises([found])) == [
        f"page_copy fp8 × 32 on sm_90a stores {told} bits at once, not 128 throughout."
    ]


def test_loads_that_are_not_under_way_together_are_a_problem() -> None:
    pooling = finding("flush csa-4 ring, fp8_ds_mla × 32, scratch", under_way=9)
    (problem,) = broken_promises([pooling])
    assert problem == (
        "flush csa-4 ring, fp8_ds_mla × 32, scratch on sm_90a waits after 9 wide loads, not after "
        "16: the compiler moved the others after the wait."
    )


def test_sums_that_no_tensor_core_takes_are_a_problem() -> None:
    name = "index_scores fp8 × 32, 64 heads"
    (problem,) = broken_promises([finding(name, products={})])
    assert problem == f"{name} on sm_90a has no instruction for the tensor cores."
    assert list(broken_promises([finding(name, products={"HMMA.16816": 32})])) == []


@pytest.mark.parametrize(
    ("early", "told"), [(None, "never waits"), (1, "touches memory before it waits")]
)
def test_a_kernel_that_does_not_wait_for_the_one_in_front_is_a_problem(
    early: int | None, told: str
) -> None:
    (problem,) = broken_promises([finding(early=early)])
    assert problem == (
        f"page_copy fp8 × 32 on sm_90a {told} for the kernel in front of it: "
        "begin with begin_kernel()."
    )
    assert list(broken_promises([finding(architecture="sm_80", early=early)])) == []


def test_every_promise_is_about_kernels_that_there_are() -> None:
    names = [f"{example.launch.kernel} {example.subject}" for example in catalogue()]
    assert [p for p in PROMISES if not any(fnmatchcase(name, p) for name in names)] == []


def test_every_kernel_that_moves_values_promises_a_width() -> None:
    names = {f"{example.launch.kernel} {example.subject}" for example in catalogue()}
    silent = {name for name in names if not any(fnmatchcase(name, p) for p in PROMISES)}
    assert {name.partition(" ")[0] for name in silent} == BOOKKEEPING | CHOICES
