"""Traces whose later turns carry what is new, and traces of any names."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, detect_format, read_trace
from dsv4kv.traces.files import TimedFields
from dsv4kv.traces.request import Request


def write(folder: Path, *records: Mapping[str, object]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def turn(session: str, tokens: int, ids: list[int], **time: float) -> dict[str, object]:
    size = {"input_length": tokens, "output_length": 5, "hash_ids": ids}
    return {"session_id": session} | size | time


# turns, then time, tokens and ids of the requests; whether a line has no time of its own
DELTAS: dict[str, tuple[list[dict[str, object]], list[tuple[float, int, tuple[int, ...]]]]] = {
    "a later turn goes on from the one before": (
        [turn("a", 1024, [1, 2], timestamp=0), turn("a", 600, [3, 4], timestamp=2000)],
        [(0.0, 1024, (1, 2)), (2.0, 1624, (1, 2, 3, 4))],
    ),
    "a partial last block is told anew": (
        [turn("a", 700, [1, 2], timestamp=0), turn("a", 700, [9, 3], timestamp=1)],
        [(0.0, 700, (1, 2)), (0.001, 1400, (1, 9, 3))],
    ),
    "or keeps its id": (
        [turn("a", 700, [1, 2], timestamp=0), turn("a", 700, [3], timestamp=1)],
        [(0.0, 700, (1, 2)), (0.001, 1400, (1, 2, 3))],
    ),
    "a delay counts from the turn before, and turns come in order of time": (
        [turn("a", 512, [1], timestamp=1000), turn("a", 512, [2], delay=3000),
         turn("b", 512, [5], timestamp=2000), turn("a", 512, [3], delay=500.5)],
        [(1.0, 512, (1,)), (2.0, 512, (5,)), (4.0, 1024, (1, 2)), (4.5005, 1536, (1, 2, 3))],
    ),
    "sessions interleave": (
        [turn("a", 512, [1], timestamp=0), turn("b", 512, [2], timestamp=5),
         turn("b", 512, [3], delay=10), turn("a", 512, [4], delay=1000)],
        [(0.0, 512, (1,)), (0.005, 512, (2,)), (0.015, 1024, (2, 3)), (1.0, 1024, (1, 4))],
    ),
    "a group beside them": (
        [turn("a", 513, [7, 8], timestamp=1000, group_id=0), turn("a", 511, [9], delay=1)],
        [(1.0, 513, (7, 8)), (1.001, 1024, (7, 9))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DELTAS)
def test_turns_are_known_by_a_line_without_a_time(name: str, tmp_path: Path) -> None:
    records, expected = DELTAS[name]
    path = write(tmp_path, *records)
    is_delta = any("delay" in each for each in records)
    assert detect_format(path) == ("mooncake-delta" if is_delta else "mooncake")
    requests = read_trace(path, "mooncake-delta")
    assert [(r.arrival_s, r.input_tokens, r.prefix_hashes) for r in requests] == expected


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


def test_growing_prompts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_timed_trace_is_read_as_told(unit: str, seconds: float, tmp_path: Path) -> None:
    options = ReadOptions(NAMES, unit, id_tokens=50)
    assert list(read_trace(write(tmp_path, TIMED), "timed", options)) == [
        Request(seconds, 100, 3, (7, 8), 50)
    ]
