"""Lists of ids taken out of a text are those that JSON has there; all others stay."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.traces.request import IdRuns
from dsv4kv.traces.weka import ID_BOUND, lift_ids, lifted


def put_back(value: Any, lists: list[IdRuns]) -> Any:
    """A parsed text with the lists where their names are."""
    if isinstance(value, dict):
        return {name: put_back(inner, lists) for name, inner in value.items()}
    if isinstance(value, list):
        return [put_back(inner, lists) for inner in value]
    ids = lifted(value, lists)
    return value if ids is None else list(ids)


@st.composite
def turns(draw: st.DrawFn) -> list[list[int]]:
    """Lists that mostly begin as the one before."""
    lists: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 8))):
        kept = lists[-1][: draw(st.integers(0, 12))]
        start = draw(st.integers(0, 130))
        lists.append(kept + list(range(start, start + draw(st.integers(0, 9)))))
    return lists


@given(turns(), st.sampled_from([None, 1, 3]))
def test_lists_that_are_lifted_are_those_of_the_text(
    lists: list[list[int]], indent: int | None
) -> None:
    records = [{"in": 7, "hash_ids": ids, "out": "[]"} for ids in lists]
    text = json.dumps({"requests": records}, indent=indent)
    rest, runs = lift_ids(text)
    assert len(runs) == len(lists)
    assert put_back(json.loads(rest), runs) == json.loads(text)


STAY = [
    "[1.5]",
    "[true, 1]",
    "[[1]]",
    "[-1]",
    f"[{ID_BOUND}]",
    f"[{2**70}]",
    '["]"]',
    "[null]",
    "7",
]


@pytest.mark.parametrize("value", STAY)
def test_what_is_no_list_of_ids_stays_where_it_is(value: str) -> None:
    text = f'[{{"hash_ids": [1, 2]}}, {{"hash_ids": {value}}}, {{"hash_ids": [1, 3]}}]'
    rest, runs = lift_ids(text)
    assert [list(ids) for ids in runs] == [[1, 2], [1, 3]]
    assert json.loads(rest)[1]["hash_ids"] == json.loads(value)


def test_text_that_only_looks_like_a_list_is_left_alone() -> None:
    text = json.dumps({"said": '"hash_ids": [1, 2]', 'odd"hash_ids': [3], "hash_ids": [4]})
    rest, runs = lift_ids(text)
    assert [list(ids) for ids in runs] == [[4]]
    assert put_back(json.loads(rest), runs) == json.loads(text)
