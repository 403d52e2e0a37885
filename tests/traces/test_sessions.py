"""Traces whose later turns carry what is new, and traces of any names."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, read_trace
from dsv4kv.traces.files import TimedFields
from dsv4kv.traces.request import Request


def write(folder: Path, *records: Mapping[str, object]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def turn(session: str, tokens: int, ids: list[int], **time: float) -> dict[str, object]:
    size = {"input_length": tokens, "output_length": 5, "hash_ids": ids}
    return {"session_id": session} | size | time


def test_a_later_turn_goes_on_from_the_prompt_of_the_turn_before(tmp_path: Path) -> None:
    path = write(
        tmp_path, turn("a", 1024, [1, 2], timestamp=0), turn("a", 600, [3, 4], timestamp=2000)
    )
    assert list(read_trace(path, "mooncake-delta")) == [
        Request(0.0, 1024, 5, (1, 2), 512),
        Request(2.0, 1624, 5, (1, 2, 3, 4), 512),
    ]


@pytest.mark.parametrize(("new", "whole"), [([9, 3], (1, 9, 3)), ([3], (1, 2, 3))])
def test_a_partial_last_block_is_told_anew_or_keeps_its_id(
    new: list[int], whole: tuple[int, ...], tmp_path: Path
) -> None:
    path = write(tmp_path, turn("a", 700, [1, 2], timestamp=0), turn("a", 700, new, timestamp=1))
    assert [request.prefix_hashes for request in read_trace(path, "mooncake-delta")][1] == whole


def test_a_delay_counts_from_the_turn_before_and_turns_come_in_order_of_time(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path,
        turn("a", 512, [1], timestamp=1000),
        turn("a", 512, [2], delay=3000),
        turn("b", 512, [5], timestamp=2000),
        turn("a", 512, [3], delay=500),
    )
    trace = [(r.arrival_s, r.input_tokens) for r in read_trace(path, "mooncake-delta")]
    assert trace == [(1.0, 512), (2.0, 512), (4.0, 1024), (4.5, 1536)]


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([turn("a", 512, [1])], r":1: timestamp is missing"),
        ([turn("a", 512, [1], timestamp=0), turn("a", 512, [2])], r":2: delay is missing"),
        (
            [turn("a", 512, [1], timestamp=0), turn("a", 512, [2, 3], delay=1)],
            r":2: hash_ids has 2 ids, expected 1: the turn makes the session's prompt 2 blocks",
        ),
        ([{"timestamp": 0, "input_length": 1}], r":1: session_id is missing"),
        ([turn("a", 2**31 - 1, [], timestamp=0)], r":1: hash_ids has 0 ids, expected 4,194,304"),
    ],
)
def test_a_defective_turn_names_file_and_line(
    records: list[dict[str, object]], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl{sentence}"):
        list(read_trace(write(tmp_path, *records), "mooncake-delta"))


def test_prompts_that_grow_turn_by_turn_are_held_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of 20,000 turns in 1.3 MB has 200 million ids."""
    turns = [turn("a", 512, [number], timestamp=number) for number in range(5)]
    path = write(tmp_path, *turns)
    monkeypatch.setattr("dsv4kv.traces.formats._MOST_HELD", 1 + 2 + 3 + 4 + 5)
    assert len(list(read_trace(path, "mooncake-delta"))) == 5
    monkeypatch.setattr("dsv4kv.traces.formats._MOST_HELD", 1 + 2 + 3 + 4)
    with pytest.raises(TraceError, match=r":5: the prompts of all turns have over 10 ids"):
        list(read_trace(path, "mooncake-delta"))


TIMED = {"at": 2500, "prompt": 100, "answer": 3, "blocks": [7, 8]}
NAMES = TimedFields("at", "prompt", "answer", "blocks")


@pytest.mark.parametrize(("unit", "seconds"), [("s", 2500), ("ms", 2.5), ("us", 2.5e-3)])
def test_a_timed_trace_has_the_names_unit_and_size_it_is_told(
    unit: str, seconds: float, tmp_path: Path
) -> None:
    options = ReadOptions(NAMES, unit, id_tokens=50)
    assert list(read_trace(write(tmp_path, TIMED), "timed", options)) == [
        Request(seconds, 100, 3, (7, 8), 50)
    ]


def test_a_timed_trace_may_have_no_ids(tmp_path: Path) -> None:
    line = {name: value for name, value in TIMED.items() if name != "blocks"}
    (request,) = read_trace(write(tmp_path, line), "timed", ReadOptions(NAMES))
    assert (request.prefix_hashes, request.hash_block_tokens) == ((), 0)
