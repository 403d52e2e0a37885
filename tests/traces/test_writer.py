"""What is written reads back, in the same bytes every time, whole or not at all."""

import os
import tracemalloc
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, detect_format, read_trace, write_trace
from dsv4kv.traces.request import Request

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
