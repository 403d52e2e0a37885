"""Ids kept as runs are the ids, and a trace in arrays is the trace."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import load_paths, read_trace, write_trace
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import IdRuns, Request
from tests.replay.texts import ids_of

IDS = st.lists(
    st.tuples(st.integers(-(2**62), 2**62), st.integers(1, 6)).map(
        lambda run: list(range(run[0], run[0] + run[1]))
    )
    | st.lists(st.integers(0, 5))
).map(lambda runs: [number for run in runs for number in run])


@given(IDS, st.integers(-7, 7))
def test_runs_are_the_numbers_they_were_made_of(numbers: list[int], offset: int) -> None:
    runs = IdRuns.of(numbers).moved(offset)
    expected = tuple(number + offset for number in numbers)
    assert runs == expected
    assert expected == runs
    assert (len(runs), tuple(runs), hash(runs)) == (len(expected), expected, hash(expected))
    assert runs.array().tolist() == list(expected)
    assert [runs[i] for i in range(-len(expected), len(expected))] == [*expected, *expected]


@given(IDS, st.data())
def test_the_first_of_runs_are_the_first_numbers(numbers: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(numbers)))
    assert IdRuns.of(numbers).first(at) == tuple(numbers[:at])


@given(st.lists(IDS, min_size=1), st.booleans())
def test_a_trace_in_arrays_has_every_id(prompts: list[list[int]], as_runs: bool) -> None:
    trace = [
        Request(0.0, max(1, len(ids)), 0, IdRuns.of(ids) if as_runs else tuple(ids), 1)
        for ids in prompts
    ]
    if not any(prompts):
        with pytest.raises(TraceError, match="no request has block ids"):
            collect_paths(trace)
        return
    table = collect_paths(trace)
    for number, ids in enumerate(prompts):
        assert ids_of(table, number) == ids
        runs = table.offsets[number + 1] - table.offsets[number]
        assert runs == len(IdRuns.of(ids).starts)
    assert table.references == sum(map(len, prompts))


@pytest.mark.parametrize("runs", [[1], [1, 0], [1, 3], [1, 1, 2], "ab"])
def test_runs_that_are_not_those_of_the_prompt_are_refused(runs: object, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    record = {"arrival_s": 0, "input_tokens": 8, "output_tokens": 1, "hash_block_tokens": 8}
    path.write_text(json.dumps(record | {"prefix_runs": runs}) + "\n")
    with pytest.raises(TraceError, match=r"own\.jsonl:1: prefix_runs "):
        list(read_trace(path))


def test_ids_that_contradict_each_other_name_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    ids = [1, 2, 3], [7], [1, 9, 3]
    write_trace((Request(0.0, 512 * len(each), 1, tuple(each), 512) for each in ids), path)
    with pytest.raises(
        TraceError, match=rf"^{path}:3: block id 3 has another history than at {path}:1: an id"
    ):
        load_paths(path)
