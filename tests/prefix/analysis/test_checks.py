"""Ids that contradict each other and clocks that run backwards are found, wherever they are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.prefix.analysis.checks import find_contradiction, first_step_back
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.collect import collect_paths
from tests.prefix.analysis.traces import Text, texts, to_table

SMALL = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1)


def table_of(paths: list[list[int]]):  # type: ignore[no-untyped-def]
    return collect_paths(
        Request(float(i), len(path), 0, tuple(path), 1) for i, path in enumerate(paths)
    )


@given(texts())
def test_prompts_that_form_a_tree_do_not_contradict(prompts: list[Text]) -> None:
    assert find_contradiction(to_table(prompts)) is None


@given(SMALL)
def test_a_contradiction_is_an_id_with_two_parents(paths: list[list[int]]) -> None:
    parents: dict[int, set[int | None]] = {}
    for path in paths:
        for before, block in zip([None, *path], path, strict=False):
            parents.setdefault(block, set()).add(before)
    found = find_contradiction(table_of(paths))
    assert (found is None) == all(len(those) == 1 for those in parents.values())
    if found is not None:
        assert len(parents[found.id]) > 1
        assert paths[found.request][found.block] == found.id
        here = [None, *paths[found.request]][found.block]
        other = paths[found.earlier]
        assert [None, *other][other.index(found.id)] != here


@given(st.lists(st.floats(0, 9), min_size=1))
def test_the_first_step_back_of_the_clock_is_found(times: list[float]) -> None:
    table = collect_paths(Request(time, 1, 0, (i,), 1) for i, time in enumerate(times))
    steps = np.flatnonzero(np.diff(times) < 0)
    assert first_step_back(table) == (steps[0] + 1 if len(steps) else None)
