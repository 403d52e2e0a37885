"""Choosing entries and blocks: exactly the best, of equals the first, in ascending order."""

from types import ModuleType

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.examples import examples
from tests.ops.samples import each_backend, generator

PAGE, SIZE = 4, 2
TABLE = torch.tensor([[5, 2, 7, 0, 1], [3, 6, 4, 8, 9], [-1, -1, -1, -1, -1]], dtype=torch.int32)
SLOTS = torch.tensor([1, 0, 0, -1, 2])
MOST = 20
FEW = (-3.0, -0.0, 0.0, 0.5, 2.0)  # so that most are equal to another

small = examples(200)

lengths_of_tokens = st.tuples(*(st.integers(0, MOST) for _ in range(4)), st.just(0))
score_rows = st.lists(
    st.lists(st.sampled_from(FEW), min_size=MOST, max_size=MOST), min_size=5, max_size=5
)


def best(scores: list[float], candidates: list[int], count: int) -> list[int]:
    """One after another: the first of the largest that are left."""
    left, chosen = list(candidates), list[int]()
    while left and len(chosen) < count:
        top = max(left, key=lambda i: (scores[i], -i))
        left.remove(top)
        chosen.append(top)
    return sorted(chosen)


def padded(row: list[int], count: int) -> list[int]:
    return row + [-1] * (count - len(row))


def places(slot: int, chosen: list[int]) -> list[int]:
    return [int(TABLE[slot, i // PAGE]) * PAGE + i % PAGE for i in chosen]


def run_topk(
    backend: ModuleType, scores: Tensor, lengths: Tensor, blocks: Tensor | None, count: int
) -> tuple[list[list[int]], list[list[int]]]:
    out, entries = (torch.full((5, count), -77, dtype=torch.int32) for _ in range(2))
    backend.select_topk(scores, lengths, blocks, TABLE, SLOTS, PAGE, out, entries)
    return out.tolist(), entries.tolist()


@each_backend
@small
@given(score_rows, lengths_of_tokens, st.integers(1, MOST + 3))
def test_topk_is_the_best_entries_and_where_they_are(
    backend: ModuleType, rows: list[list[float]], lengths: tuple[int, ...], count: int
) -> None:
    scores = torch.tensor(rows)
    for t, length in enumerate(lengths):
        scores[t, length:] = torch.inf  # what is not seen is not read
    found = run_topk(backend, scores, torch.tensor(lengths), None, count)
    for t, slot in enumerate(SLOTS.tolist()):
        chosen = best(rows[t], list(range(lengths[t] if slot >= 0 else 0)), count)
        assert found[0][t] == padded(chosen, count)
        assert found[1][t] == padded(places(slot, chosen), count)


@each_backend
@small
@given(score_rows, lengths_of_tokens, st.integers(1, 12), st.data())
def test_topk_among_blocks_is_the_best_entries_of_those_blocks(
    backend: ModuleType,
    rows: list[list[float]],
    lengths: tuple[int, ...],
    count: int,
    data: st.DataObject,
) -> None:
    width, blocks = 6, torch.full((5, 6), -1, dtype=torch.int32)
    scores, given_rows = torch.full((5, width * SIZE), torch.inf), []
    for t in range(5):
        chosen = sorted(data.draw(st.sets(st.integers(0, MOST // SIZE - 1), max_size=width)))
        blocks[t, : len(chosen)] = torch.tensor(chosen)
        given_rows.append([b * SIZE + i for b in chosen for i in range(SIZE)])
        for column, index in enumerate(given_rows[t]):
            scores[t, column] = rows[t][index]
    found = run_topk(backend, scores, torch.tensor(lengths), blocks, count)
    for t, slot in enumerate(SLOTS.tolist()):
        visible = [i for i in given_rows[t] if slot >= 0 and i < lengths[t]]
        chosen = best(rows[t], visible, count)
        assert found[0][t] == padded(chosen, count)
        assert found[1][t] == padded(places(slot, chosen), count)


@each_backend
@small
@given(score_rows, lengths_of_tokens, st.integers(1, 3), st.integers(1, 8))
def test_blocks_are_chosen_by_their_largest_score_and_the_newest_always(
    backend: ModuleType,
    rows: list[list[float]],
    lengths: tuple[int, ...],
    size: int,
    count: int,
) -> None:
    out, scores = torch.full((5, count), -77, dtype=torch.int32), torch.tensor(rows)
    for t, length in enumerate(lengths):
        scores[t, length:] = torch.inf
    backend.select_blocks(scores, torch.tensor(lengths), size, out)
    for t, length in enumerate(lengths):
        tops = [max(rows[t][i : min(i + size, length)]) for i in range(0, length, size)]
        if tops:
            tops[-1] = 1e9
        assert out[t].tolist() == padded(best(tops, list(range(len(tops))), count), count)


@each_backend
def test_topk_of_many_distinct_scores_is_torchs_own(backend: ModuleType) -> None:
    scores = torch.randn(5, 19, generator=generator(1))
    found, _ = run_topk(backend, scores, torch.full((5,), 19), None, 7)
    for t in (0, 1, 2, 4):
        assert found[t] == sorted(scores[t].topk(7).indices.tolist())
