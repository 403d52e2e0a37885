"""Traces written in the formats of others read back as they were."""

import os
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, detect_format, read_trace, write_trace
from dsv4kv.traces.formats import in_milliseconds
from dsv4kv.traces.request import IdRuns, Request, Sessions


@st.composite
def chained(draw: st.DrawFn, size: int = 512) -> list[Request]:
    """Requests in order of time, each of them new or going on somewhere inside of an earlier one.

    An id stands for a block and everything before it, also of a partial last block.
    """
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
        runs = IdRuns.of(ids) if draw(st.booleans()) else tuple(ids)
        made.append(Request(now_ms / 1000, tokens, draw(st.integers(0, 9)), runs, size))
    return made


@given(chained())
def test_mooncake_lines_read_back(trace: list[Request]) -> None:
    path = Path(mkdtemp()) / "trace.jsonl.gz"
    assert write_trace(trace, path, "mooncake") == len(trace)
    assert list(read_trace(path, "mooncake")) == trace


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


@pytest.mark.parametrize("odd", ODD)
def test_what_mooncake_cannot_tell_is_refused(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = Request(0.0, 600, 1, (1, 2), 512)
    with pytest.raises(TraceError, match=r"every 512 tokens .* request 1 has .*another format\.$"):
        write_trace([good, ODD[odd]], path, "mooncake")
    assert not list(tmp_path.iterdir())


def test_a_run_of_millions_of_ids_is_not_listed_one_by_one(tmp_path: Path) -> None:
    runs = IdRuns(np.array([5]), np.array([2**24]))  # a line of 120 bytes
    with pytest.raises(TraceError, match=r"16,777,216 ids, and 8,388,608 at most are listed"):
        write_trace([Request(0.0, 2**33, 1, runs, 512)], tmp_path / "trace", "mooncake")


REQUEST = Request(0.25, 100, 7, (3, 4), 64)


@st.composite
def requests(draw: st.DrawFn, block_tokens: int) -> Request:
    input_tokens = draw(st.integers(1, 4 * block_tokens))
    blocks = -(-input_tokens // block_tokens)
    hashes = draw(st.lists(st.integers(0, 2**63 - 2), min_size=blocks, max_size=blocks))
    known = draw(st.booleans())
    return Request(
        arrival_s=draw(st.floats(-1e12, 1e12)), input_tokens=input_tokens,
        output_tokens=draw(st.integers(0, 2**31 - 1)),
        prefix_hashes=tuple(hashes) if known else (),
        hash_block_tokens=block_tokens if known else 0,
        session=draw(st.none() | st.integers(0, 2)), answer_s=draw(st.none() | st.floats(0, 1e9)),
    )  # fmt: skip


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
