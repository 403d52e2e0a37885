"""Traces written in the formats of others read back as they were."""

import json
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, detect_format, read_trace, write_trace
from dsv4kv.traces.formats import in_milliseconds
from dsv4kv.traces.request import IdRuns, Request, Sessions
from dsv4kv.traces.weka import write_weka


@st.composite
def chained(draw: st.DrawFn, size: int | None = None) -> list[Request]:
    """Requests in order of time, each of them new or going on somewhere inside of an earlier one.

    An id stands for a block and everything before it, also of a partial last block.
    """
    size = size or draw(st.sampled_from([1, 2, 64]))
    made: list[Request] = []
    names: dict[tuple[object, ...], int] = {}
    now_ms = 0
    base = draw(st.sampled_from([0, 7, 2**40 - 2, 2**62]))
    for _ in range(draw(st.integers(1, 12))):
        above = draw(st.none() | st.sampled_from(made)) if made else None
        full = above.input_tokens // size if above else 0
        kept = draw(st.integers(0, full))
        tokens = kept * size + draw(st.integers(1, 3 * size))
        ids = list(above.prefix_hashes[:kept]) if above else []
        for block in range(kept, -(-tokens // size)):
            content = (tuple(ids), draw(st.integers(0, 1)), min(size, tokens - block * size))
            ids.append(names.setdefault(content, base + 3 * len(names)))
        now_ms += draw(st.sampled_from([0, 1, 250, 333]))
        arrival = now_ms / 1000 if size == 512 else now_ms / 7
        runs = IdRuns.of(ids) if draw(st.booleans()) else tuple(ids)
        made.append(Request(arrival, tokens, draw(st.integers(0, 9)), runs, size))
    return made


def in_order(trace: Sequence[Request]) -> list[Counter[Request]]:
    """Requests of each time: which of them comes first, sorting need not keep."""
    moments = dict.fromkeys(request.arrival_s for request in trace)
    return [Counter(r for r in trace if r.arrival_s == moment) for moment in moments]


@pytest.mark.parametrize("name", ["mooncake", "mooncake-delta", "timed"])
@given(data=st.data())
def test_lines_of_other_formats_read_back(name: str, data: st.DataObject) -> None:
    trace = data.draw(chained(None if name == "timed" else 512))
    path = Path(mkdtemp()) / "trace.jsonl.gz"
    assert write_trace(trace, path, name) == len(trace)
    options = ReadOptions(id_tokens=trace[0].hash_block_tokens)
    assert list(read_trace(path, name, options)) == trace


@given(chained())
def test_weka_conversations_read_back_but_for_blocks_that_are_not_full(
    trace: list[Request],
) -> None:
    """Ids are the same or, where the format cannot hold them, others in the same places."""
    folder = Path(mkdtemp()) / "conversations"
    assert write_weka(trace, folder) == len(trace)
    found = list(read_trace(folder))
    told = [r.prefix_hashes[: r.input_tokens // r.hash_block_tokens] for r in trace]
    names = dict[int, int]()
    if any(max(ids, default=0) >= 2**40 for ids in told):
        distinct = sorted({number for ids in told for number in ids})
        names = {number: place for place, number in enumerate(distinct)}
    expected = [
        Request(
            r.arrival_s,
            r.input_tokens,
            r.output_tokens,
            tuple(names.get(number, number) for number in ids),
            r.hash_block_tokens,
        )
        for r, ids in zip(trace, told, strict=True)
    ]
    assert in_order(found) == in_order(expected)


def test_a_weka_folder_has_a_file_for_every_session(tmp_path: Path) -> None:
    trace = [
        Request(0.0, 9, 5, (1, 2, 9), 4),
        Request(0.5, 4, 6, (7,), 4),
        Request(2.0, 12, 7, (1, 2, 3), 4),
    ]
    write_weka(trace, tmp_path / "out")
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert sorted(files) == ["conversation-0.json", "conversation-1.json"]
    first = files["conversation-0.json"]
    assert (first["block_size"], first["hash_id_scope"]) == (4, "global")
    assert first["requests"] == [
        {"t": 0.0, "type": "n", "in": 9, "out": 5, "hash_ids": [1, 2]},
        {"t": 2.0, "type": "n", "in": 12, "out": 7, "hash_ids": [1, 2, 3]},
    ]


def sessions_of(*prompts: tuple[int, Sequence[int]]) -> list[int]:
    sessions = Sessions()
    return [sessions.place(Request(0.0, tokens, 0, ids, 4))[0] for tokens, ids in prompts]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([(8, (1, 2)), (12, (1, 2, 3))], [0, 0]),
        ([(8, (1, 2)), (12, (1, 5, 3))], [0, 1]),  # parts from it
        ([(8, (1, 2)), (8, (1, 2))], [0, 1]),  # is no longer
        ([(3, (1,)), (12, (1, 5, 3))], [0, 1]),  # it had no full block
        ([(9, (1, 2, 3)), (13, (1, 2, 4, 5))], [0, 0]),  # whose third block was not full
        ([(4, (1,)), (8, (1, 2)), (12, (1, 2, 3)), (8, (1, 4))], [0, 0, 0, 1]),  # has gone on
        ([(4, (1,)), (8, (6, 7)), (12, (1, 2, 3)), (12, (6, 7, 8))], [0, 1, 0, 1]),
        ([(8, (1, 2)), (12, (3, 2, 4))], [0, 1]),  # another history, though the id is the same
    ],
)
def test_a_request_goes_on_with_the_session_it_begins_with(
    prompts: list[tuple[int, tuple[int, ...]]], expected: list[int]
) -> None:
    assert sessions_of(*prompts) == expected
    assert sessions_of(*((tokens, IdRuns.of(ids)) for tokens, ids in prompts)) == expected


@given(st.integers(0, 10**15))
def test_whole_milliseconds_stay_whole(milliseconds: int) -> None:
    told = in_milliseconds(milliseconds / 1000)
    assert (told, type(told)) == (milliseconds, int)


ODD = {
    "other sizes": Request(0.0, 128, 1, (1, 2), 64),
    "no ids": Request(0.0, 512, 1),
    "the partial block is missing": Request(0.0, 600, 1, (1,), 512),
}


@pytest.mark.parametrize("name", ["mooncake", "mooncake-delta"])
@pytest.mark.parametrize("odd", ODD)
def test_what_mooncake_cannot_tell_is_refused(odd: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = Request(0.0, 600, 1, (1, 2), 512)
    with pytest.raises(TraceError, match=r"every 512 tokens .* request 1 has .*another format\.$"):
        write_trace([good, ODD[odd]], path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ([], "there are no requests"),
        ([Request(0.0, 512, 1)], "request 0 has 0 ids for 512 tokens"),
        ([Request(0.0, 8, 1, (1,), 4)], "request 0 has 1 ids for 8 tokens"),
        ([Request(0.0, 8, 1, (1, 2), 4), Request(0.0, 3, 1, (1,), 2)], "has one block size"),
    ],
)
def test_what_weka_cannot_tell_is_refused(
    trace: list[Request], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError, match=sentence):
        write_weka(trace, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    trace = [Request(0.0, 4, 1, (1,), 4)]
    for path in (tmp_path, tmp_path / "mine"):
        with pytest.raises(TraceError, match=r"there is something already\): name a new folder"):
            write_weka(trace, path)
    with pytest.raises(TraceError, match="No such file or directory"):
        write_weka(trace, tmp_path / "missing" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


REQUEST = Request(0.25, 100, 7, (3, 4), 64)


@st.composite
def requests(draw: st.DrawFn, block_tokens: int) -> Request:
    input_tokens = draw(st.integers(1, 4 * block_tokens))
    blocks = -(-input_tokens // block_tokens)
    hashes = draw(st.lists(st.integers(0, 2**63 - 2), min_size=blocks, max_size=blocks))
    known = draw(st.booleans())
    return Request(
        arrival_s=draw(st.floats(-1e12, 1e12)),
        input_tokens=input_tokens,
        output_tokens=draw(st.integers(0, 2**31 - 1)),
        prefix_hashes=tuple(hashes) if known else (),
        hash_block_tokens=block_tokens if known else 0,
    )


@given(st.integers(1, 700).flatmap(lambda n: st.lists(requests(n), min_size=1)), st.booleans())
def test_what_is_written_reads_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, trace: list[Request], compressed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / ("trip.jsonl.gz" if compressed else "trip.jsonl")
    assert write_trace(trace, path) == len(trace)
    assert list(read_trace(path, options=ReadOptions(any_order=True))) == trace
    assert detect_format(path) == "dsv4kv"


def test_equal_traces_are_equal_files_whatever_their_name_and_time(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gz", tmp_path / "other.gz"
    write_trace([REQUEST], one)
    os.utime(one, (0, 0))
    write_trace([REQUEST], other)
    assert one.read_bytes() == other.read_bytes()
    # RFC 1952: no flags (so no name), then four bytes of time
    assert one.read_bytes()[3:8] == bytes(5)


def broken_trace() -> Iterator[Request]:
    yield REQUEST
    raise TraceError("trace:2: defect.")


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_failure_leaves_the_old_file_and_nothing_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(TraceError, match="trace:2: defect"):
        write_trace(broken_trace(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_reading_holds_a_few_lines_whatever_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl.gz"
    request = Request(0.0, 64 * 200, 1, tuple(range(200)), 64)
    write_trace(repeat(request, 2_000), path)
    tracemalloc.start()
    count = sum(1 for _ in read_trace(path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2_000
    assert peak_bytes < 300_000  # the file's text has 1.5 MB, its requests far more
