"""Conversations of agents: nested requests, one clock for a folder, ids of their own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, read_trace
from dsv4kv.traces.request import IdRuns

WEKA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "weka"
needs_weka = pytest.mark.skipif(
    not WEKA.exists(), reason="the recorded agentic conversations are not on this machine"
)


def turn(t: float, ids: Sequence[float], rest: int = 1, **more: object) -> dict[str, object]:
    size = {"t": t, "type": "n", "in": 4 * len(ids) + rest, "out": 2, "hash_ids": ids}
    return size | more


def conversation(*requests: object, scope: str = "local", block: int = 4) -> dict[str, object]:
    return {"id": "c", "block_size": block, "hash_id_scope": scope, "requests": list(requests)}


def write(folder: Path, **conversations: dict[str, Any]) -> Path:
    for name, text in conversations.items():
        (folder / f"{name}.json").write_text(json.dumps(text))
    return folder


def test_nested_requests_count_their_time_from_the_start_of_their_agent(tmp_path: Path) -> None:
    inner = {"t": 2.0, "type": "subagent", "requests": [turn(0.5, [1, 9])]}
    agent = {"t": 10.0, "type": "subagent", "requests": [turn(1.0, [1, 5]), inner]}
    write(tmp_path, a=conversation(turn(0.0, [1, 2]), agent, turn(11.5, [1, 2, 3])))
    told = [(r.arrival_s, len(r.prefix_hashes)) for r in read_trace(tmp_path / "a.json")]
    assert told == [(0.0, 2), (11.0, 2), (11.5, 3), (12.5, 2)]


def test_conversations_of_a_folder_start_one_after_the_other_by_name(tmp_path: Path) -> None:
    write(
        tmp_path, b=conversation(turn(0.0, [1])), a=conversation(turn(0.0, [1]), turn(3, [1, 2]))
    )
    trace = list(read_trace(tmp_path, options=ReadOptions(stagger_s=3.0)))
    assert [r.arrival_s for r in trace] == [0.0, 3.0, 3.0]
    # equal times stay in order of the files
    assert [len(r.prefix_hashes) for r in trace] == [1, 2, 1]


@pytest.mark.parametrize("scope", ["local", "global"])
def test_only_global_ids_are_the_same_blocks_anywhere(scope: str, tmp_path: Path) -> None:
    one, other = (conversation(turn(0, [1, 2]), scope=scope) for _ in range(2))
    first, second = read_trace(write(tmp_path, a=one, b=other))
    shared = set(first.prefix_hashes) & set(second.prefix_hashes)
    assert shared == ({1, 2} if scope == "global" else set())


DEFECTS = {
    "too many ids": (
        conversation(turn(0, [1, 2, 3], rest=-4)),
        r"a\.json:1: requests\[0\]: hash_ids has 3 ids, expected 2: one per full block of 4 of 8",
    ),
    "true among ids": (conversation(turn(0, [True, 2])), "hash_ids is no list of whole numbers"),
    "a large id": (conversation(turn(0, [2**70])), "hash_ids go from 1180591620717411303424"),
    "a last id": (conversation(turn(0, [2**63 - 1])), "hash_ids go from 9223372036854775807"),
    "unknown scope": (conversation(turn(0, [1]), scope="both"), "hash_id_scope is 'both'"),
    "no time": (
        conversation({"type": "n", "in": 4, "out": 1, "hash_ids": [1]}), "0.: t is missing",
    ),
    "no list": (conversation() | {"requests": 3}, "requests is no list"),
    "agent without requests": (
        conversation(turn(0, [1]), {"t": 0.0, "type": "subagent"}), "requests is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_names_the_file_and_the_request(defect: str, tmp_path: Path) -> None:
    text, sentence = DEFECTS[defect]
    with pytest.raises(TraceError, match=sentence):
        list(read_trace(write(tmp_path, a=text)))


@pytest.mark.parametrize(
    ("said", "known"), [(2, 2.0), (0.5, 0.5), (-1, None), (10**400, None), (True, None)]
)
def test_seconds_of_an_answer_are_known(said: object, known: float | None, tmp_path: Path) -> None:
    folder = write(tmp_path, a=conversation(turn(0, [1], api_time=said)))
    assert [request.answer_s for request in read_trace(folder)] == [known]


def test_a_folder_has_one_block_size(tmp_path: Path) -> None:
    write(tmp_path, a=conversation(turn(0, [1])), b=conversation(turn(0, [1], 4), block=8))
    with pytest.raises(TraceError, match=r"b\.json: block_size is 8, .*a\.json has 4"):
        list(read_trace(tmp_path))


@needs_weka
def test_recorded_conversations_keep_their_ids_as_few_runs() -> None:
    trace = list(read_trace(WEKA))
    runs = [request.prefix_hashes for request in trace]
    assert all(isinstance(ids, IdRuns) for ids in runs)
    # counted with jq: requests, sum of in, sum of the lengths of hash_ids
    assert len(trace) == 132
    assert sum(request.input_tokens for request in trace) == 11_668_657
    assert sum(map(len, runs)) == 182_257
    assert sum(len(ids.starts) for ids in runs if isinstance(ids, IdRuns)) < 182_257 / 59
