"""What kernels promise of their machine code, and how a broken promise is told."""

from fnmatch import fnmatchcase
from typing import Any

import pytest

from dsv4kv.ops.cuda.inspection import broken_promises
from dsv4kv.ops.launches.catalogue import PROMISES, Promise, catalogue
from tests.cuda.findings import GOOD, finding

BOOKKEEPING = {"judge_blocks", "prepare_blocks", "completed_entries", "do_nothing"}
CHOICES = {"select_topk", "merge_topk", "select_blocks", "merge_blocks"}


COPY, SCORES = "page_copy fp8 × 32", "index_scores fp8 × 32, 64 heads"
POOL = "flush main states of csa layers, V4, scratch"
BROKEN: list[tuple[str, dict[str, Any], str | None]] = [
    (COPY, {}, None),
    (COPY, {"local_bytes": 8}, "uses 8 B of local memory a thread (spilled registers or arrays"),
    (COPY, {"accesses": GOOD | {"LDL.64": 1}}, "uses 0 B of local memory a thread"),
    (COPY, {"accesses": {"LDG.32": 4, "STG.128": 1}}, "has no load of 128 bits, only 32."),
    (COPY, {"accesses": GOOD | {"STG.32": 4}}, "has stores of 32 and 128 bits, not 128"),
    (COPY, {"accesses": {"LDG.128": 1}}, "has stores of none bits, not 128 throughout."),
    (
        COPY,
        {"early": None},
        "never waits for the kernel in front of it: begin with begin_kernel().",
    ),
    (COPY, {"early": 1}, "touches memory before it waits for the kernel in front of it"),
    (COPY, {"early": 1, "architecture": "sm_80"}, None),
    (POOL, {"under_way": 9}, "waits after 9 wide loads, not after 16: the compiler moved"),
    (SCORES, {"products": {}}, "has no instruction for the tensor cores."),
    (SCORES, {"products": {"HMMA.16816": 32}}, None),
]


@pytest.mark.parametrize(("name", "found", "problem"), BROKEN)
def test_a_broken_promise_is_told(name: str, found: dict[str, Any], problem: str | None) -> None:
    problems = list(broken_promises([finding(name, **found)]))
    if problem is None:
        assert problems == []
    else:
        assert problems[0].startswith(f"{name} on sm_90a {problem}")


def test_every_promise_is_about_kernels_that_there_are() -> None:
    names = [f"{example.launch.kernel} {example.subject}" for example in catalogue()]
    assert [p for p in PROMISES if not any(fnmatchcase(name, p) for name in names)] == []


def test_only_bookkeeping_and_choices_promise_nothing() -> None:
    names = {f"{example.launch.kernel} {example.subject}" for example in catalogue()}
    kept = {name: [v for p, v in PROMISES.items() if fnmatchcase(name, p)] for name in names}
    silent = {name.partition(" ")[0] for name, held in kept.items() if set(held) == {Promise()}}
    assert silent == BOOKKEEPING | CHOICES
