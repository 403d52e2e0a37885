"""Selections on the CPU twin: index by index the reference's, in one run of a row or several."""

import pytest
import torch
from torch import Tensor

from dsv4kv.ops import reference
from dsv4kv.ops.kernels import topk
from dsv4kv.ops.kernels.topk import plan_select_blocks, plan_select_topk, scratch_shape
from tests.kernels.launches import GuardedOutput
from tests.kernels.shim.twin import run
from tests.ops.samples import generator

PAGE_ENTRIES, COLUMNS, CHOICES = 32, 1000, 64
LENGTHS = torch.tensor([1000, 40, 777, 64, 0, 900])
SLOTS = torch.tensor([0, 1, 2, 0, 1, -1])

each_number_of_runs = pytest.mark.parametrize("run_columns", [32_768, 300], ids=["one", "several"])


def scores_of(kind: str) -> Tensor:
    scores = torch.randn(6, COLUMNS, generator=generator(1))
    if kind == "equal":
        return scores.round()
    if kind == "extreme":
        scores *= 1e38 * 10.0 ** -(torch.arange(COLUMNS) % 75).float()
        scores[:, ::3], scores[:, 1::5], scores[:, 2::7] = -torch.inf, 0.0, -0.0
        scores[0, 11], scores[0, 13] = torch.inf, 2.0**-149
    return scores


def outputs(columns: int, out: Tensor) -> Tensor:
    """Scratch of numbers that are no places."""
    return torch.full(scratch_shape(columns, out), -5, dtype=torch.int32)


@each_number_of_runs
@pytest.mark.parametrize("kind", ["different", "equal", "extreme"])
def test_the_best_are_the_references_of_equals_the_first(
    kind: str, run_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topk, "RUN", run_columns)
    table = torch.randperm(96, generator=generator(2)).int().view(3, 32)
    candidates = torch.randperm(125, generator=generator(3))[:50].sort().values.int().repeat(6, 1)
    candidates[:, -3:] = -1
    for blocks, columns in ((None, COLUMNS), (candidates, 400)):
        scores = scores_of(kind)[:, :columns].contiguous()
        found = [GuardedOutput.of(6, CHOICES, dtype=torch.int32) for _ in range(2)]
        given = scores, LENGTHS, blocks, table, SLOTS, PAGE_ENTRIES
        mine = tuple(each.out for each in found)
        for i, launch in enumerate(
            plan_select_topk(*given, *mine, scratch=outputs(columns, mine[0]))
        ):
            run(launch, seed=7 + i)
        right = [torch.empty_like(each) for each in mine]
        reference.select_topk(*given, *right)
        assert all(torch.equal(a.content(), b) for a, b in zip(found, right, strict=True))


@each_number_of_runs
def test_the_best_blocks_are_the_references_and_the_newest_is_among_them(
    run_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topk, "RUN", run_columns // 8)
    for kind in ("different", "equal"):
        found = GuardedOutput.of(6, 20, dtype=torch.int32)
        given, scratch = (scores_of(kind), LENGTHS, 8), outputs(COLUMNS // 8, found.out)
        for launch in plan_select_blocks(*given, found.out, scratch=scratch):
            run(launch, reverse=True)
        right = torch.empty_like(found.out)
        reference.select_blocks(*given, right)
        assert torch.equal(found.content(), right)


def test_rows_of_v4_1_at_a_million_tokens_are_several_runs() -> None:
    assert topk.runs_of(1 << 20) == 32
    assert topk.runs_of(32_768) == topk.runs_of(1) == 1
    assert topk.runs_of(32_769) == 2


def test_no_choice_is_no_launch() -> None:
    scores, none = torch.empty(3, 50), torch.empty(3, 0, dtype=torch.int32)
    table = torch.zeros(1, 2, dtype=torch.int32)
    numbers = torch.zeros(3, dtype=torch.int64)
    assert plan_select_topk(scores, numbers, None, table, numbers, 32, none, none) == ()
    assert plan_select_blocks(scores, numbers, 8, none) == ()
