"""Traces in Parquet files read back as they were written, and are told as other traces are."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from typer.testing import CliRunner

from dsv4kv import traces
from dsv4kv.cli import app
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.traces.files import DEFAULTS, TimedFields
from dsv4kv.traces.parquet import MAGIC, read_groups, write_parquet
from dsv4kv.traces.request import Batch, Request, batches_of, signed
from tests.traces.test_writers import chained


@pytest.fixture(scope="module")
def arrow() -> Any:
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: dsv4kv[parquet]")
    return sys.modules["pyarrow"]


def write_columns(path: Path, **columns: Any) -> Path:
    """A file of somebody else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


Row = tuple[float, int, int, tuple[int, ...]]


def rows_of(batches: Iterable[Batch]) -> list[Row]:
    """The requests of columns."""
    rows: list[Row] = []
    for batch in batches:
        ids: list[list[int]] = [[] for _ in batch.arrival_s]
        runs = zip(batch.request.tolist(), batch.start.tolist(), batch.count.tolist(), strict=True)
        for request, start, count in runs:
            ids[request].extend(range(start, start + count))
        columns = (batch.arrival_s, batch.input_tokens, batch.output_tokens)
        rows += zip(*(column.tolist() for column in columns), map(tuple, ids), strict=True)
    return rows


@given(trace=chained())
def test_a_trace_reads_back_as_requests_and_as_columns(arrow: Any, trace: list[Request]) -> None:
    path = Path(mkdtemp()) / "trace.parquet"
    assert write_parquet(trace, path) == len(trace)
    assert list(traces.read_trace(path)) == trace
    expected = [
        (each.arrival_s, each.input_tokens, each.output_tokens, tuple(signed(each.prefix_hashes)))
        for each in trace
    ]
    assert rows_of(traces.read_batches(path)) == rows_of(batches_of(trace)) == expected


@pytest.mark.parametrize("name", ["turns.parquet", "turns.jsonl"])
def test_sessions_and_seconds_of_answers_are_kept_for_think_times(
    arrow: Any, tmp_path: Path, name: str
) -> None:
    known = [(0, 1.5), (1, None), (0, 0.0), (None, 2.25)]
    trace = [Request(float(n), 600, 2, (n, n + 9), 512, *each) for n, each in enumerate(known)]
    path = tmp_path / name
    write = write_parquet if name.endswith("parquet") else traces.write_trace
    assert write(trace, path) == len(trace)
    assert [(each.session, each.answer_s) for each in traces.read_trace(path)] == known


def test_row_groups_end_where_memory_would(
    arrow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces.parquet, "_GROUP_ROWS", 20)
    trace = list(traces.read_trace("builtin:chat"))
    path, heard = tmp_path / "chat.parquet", list[tuple[int, int]]()
    write_parquet(iter(trace), path)
    assert arrow.parquet.ParquetFile(path).num_row_groups == 3
    assert (
        list(traces.read_trace(path, options=traces.ReadOptions(watch=lambda *n: heard.append(n))))
        == trace
    )
    assert heard[-1] == (path.stat().st_size, path.stat().st_size)


def test_it_is_a_trace_for_every_command(arrow: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "chat.parquet")
    run = CliRunner().invoke
    assert (
        "48 requests"
        in run(app, ["trace", "convert", "builtin:chat", path, "--to", "parquet"]).output
    )
    assert traces.detect_format(Path(path)) == "parquet"
    mine, theirs = (
        traces.summarize_batches(traces.read_batches(source), str)
        for source in (path, "builtin:chat")
    )
    assert mine == theirs
    assert run(app, ["trace", "info", path]).exit_code == 0
    back = tmp_path / "back.jsonl"
    assert run(app, ["trace", "convert", path, str(back)]).exit_code == 0
    assert list(traces.read_trace(back)) == list(traces.read_trace("builtin:chat"))
    one, two = (run(app, ["trace", "mrc", s, "--json"]).output for s in (path, "builtin:chat"))
    assert one.replace(path, "builtin:chat") == two


def test_columns_of_others_are_named_by_options(arrow: Any, tmp_path: Path) -> None:
    path = write_columns(
        tmp_path / "a.parquet",
        ms=[0, 1500],
        prompt=[513, 512],
        output=[7, 0],
        blocks=arrow.array([[0, 2**64 - 2], [0]], arrow.list_(arrow.uint64())),
    )
    names = TimedFields("ms", "prompt", "output", "blocks")
    options = traces.ReadOptions(names, "ms", 512)
    assert list(traces.read_trace(path, options=options)) == [
        Request(0.0, 513, 7, (0, -2), 512),
        Request(1.5, 512, 0, (0,), 512),
    ]
    without = traces.ReadOptions(TimedFields("ms", "prompt", "output"), "ms")
    assert [r.prefix_hashes for r in traces.read_trace(path, options=without)] == [(), ()]
    with pytest.raises(TraceError, match="blocks is given, but not the tokens per id"):
        next(traces.read_trace(path, options=traces.ReadOptions(names, "ms")))


DEFECTS: dict[str, dict[str, Any]] = {
    r":2: arrival_s is not within .* s of 0": {"arrival_s": [0.0, float("nan")]},
    r":1: input_tokens is not from 1": {"input_tokens": [0, 16]},
    r":2: output_tokens is not from 0": {"output_tokens": [1, -1]},
    r":1: it has more or fewer ids than blocks": {"prefix_hashes": [[1, 2], [1]]},
    r":1: a run of ids .* reaches 2\^63 - 1": {"prefix_hashes": [[2**63 - 1], [1]]},
    r"rows have several block sizes": {"hash_block_tokens": [16, 8], "input_tokens": [16, 8]},
    r"column output_tokens is string, not numbers": {"output_tokens": ["1", "2"]},
    r"column output_tokens is double, not whole numbers": {"output_tokens": [1.0, 2.0]},
    r"column arrival_s has rows without a value": {"arrival_s": [0.0, None]},
    r"column prefix_hashes is int64, not a list": {"prefix_hashes": [1, 2]},
    r":2: the request arrives at 0.000 s, .* the clock runs backwards": {"arrival_s": [1.0, 0.0]},
}


@pytest.mark.parametrize("sentence", DEFECTS)
def test_a_defect_has_its_row_and_a_sentence(sentence: str, arrow: Any, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "arrival_s": [0.0, 1.0],
        "input_tokens": [16, 16],
        "output_tokens": [1, 1],
        "hash_block_tokens": [16, 16],
        "prefix_hashes": [[1], [1]],
    }
    path = write_columns(tmp_path / "a.parquet", **columns | DEFECTS[sentence])
    for read in (traces.read_trace, traces.read_batches):
        with pytest.raises(TraceError, match=sentence):
            list(read(path))


def test_a_file_that_is_no_trace_is_refused(arrow: Any, tmp_path: Path) -> None:
    path = write_columns(tmp_path / "a", name=["x"])
    with pytest.raises(TraceError, match="no column timestamp, only name: name the columns"):
        next(traces.read_trace(path))
    with pytest.raises(TraceError, match="no mooncake trace"):
        traces.read_trace(path, "mooncake")
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        next(traces.read_trace(path))
    with pytest.raises(TraceError, match="there are no requests"):
        write_parquet([], tmp_path / "b")
    with pytest.raises(TraceError, match="compressed already"):
        write_parquet([Request(0.0, 1, 1)], tmp_path / "b.gz")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["arrival_s", "input_tokens", "run_starts", "session"])
def test_a_column_that_is_given_twice_is_refused(arrow: Any, tmp_path: Path, name: str) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    write_parquet([Request(0.0, 1, 1)], path)
    table = pq.read_table(path)
    pq.write_table(table.append_column(name, table.column(name)), path)
    for read in (traces.read_trace, traces.read_batches):
        with pytest.raises(TraceError, match=f"several columns {name}: keep one"):
            list(read(path))


def test_a_file_with_a_few_bytes_changed_is_refused_or_read(arrow: Any, tmp_path: Path) -> None:
    path, trace = tmp_path / "a", list(traces.read_trace("builtin:chat"))
    write_parquet(trace, path)
    whole, random = path.read_bytes(), Random(1)
    # pyarrow 25 aborts at the first two
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    places = [
        begin + 19,
        begin + 20,
        *(random.randrange(len(MAGIC), len(whole)) for _ in range(60)),
    ]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        with suppress(TraceError):
            assert list(traces.read_trace(path)) == trace


def test_without_pyarrow_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'dsv4kv\[parquet\]'"):
        write_parquet([Request(0.0, 1, 1)], tmp_path / "b")


@pytest.mark.parametrize(
    "columns",
    [
        {"prefix_hashes": [[1] * 20_000] * 300, "hash_block_tokens": [1] * 300},
        {"input_tokens": [1] * 300_000},
        {"output_tokens": ["x" * 100]},
    ],
    ids=["ids", "rows", "texts"],
)
def test_a_small_file_of_very_much_is_refused_before_it_is_read(
    columns: dict[str, Any], arrow: Any, tmp_path: Path
) -> None:
    rows = len(next(iter(columns.values())))
    others = {"arrival_s": [0.0] * rows, "input_tokens": [20_000] * rows}
    path = write_columns(tmp_path / "a", **others | {"output_tokens": [1] * rows} | columns)
    with pytest.raises(TraceError, match=r"are more than a trace has|output_tokens is string"):
        next(traces.read_batches(path))


BYTES, VALUES = b"\x15\x80\xe2\x09", b"\x2c\x15\xa0\x9c\x01"
"""Of a page's header: 80,000 unpacked, and 10,000 values."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BYTES, BYTES[:-1] + b"\x7f"),
        (VALUES, VALUES[:-1] + b"\x00"),
        (b"\x15\x00" + BYTES, b"\xff" * 6),
        (b"\x15\x00" + BYTES, b"\x18" + b"\xff" * 9 + b"\x01"),
        (b"\x16\xa0\x9c\x01", b"\x16\xa0\x9c\x02"),
    ],
    ids=["bytes", "fewer values", "no header", "huge text", "rows"],
)
def test_pages_of_other_sizes_than_the_footers_are_refused(
    before: bytes, after: bytes, arrow: Any, tmp_path: Path
) -> None:
    rows = 10_000
    kinds = {"arrival_s": "double", "input_tokens": "int64", "output_tokens": "int64"}
    fields = [arrow.field(name, kind, nullable=False) for name, kind in kinds.items()]
    table = arrow.table([[1] * rows] * 3, schema=arrow.schema(fields))
    path, plain = tmp_path / "a", {"use_dictionary": False, "write_statistics": False}
    arrow.parquet.write_table(table, path, compression="zstd", **plain)
    assert len(list(traces.read_trace(path))) == rows
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))
    with pytest.raises(TraceError, match=r"damaged|cannot be read as Parquet"):
        list(traces.read_trace(path))


def test_a_session_that_is_no_number_is_left_out(arrow: Any, tmp_path: Path) -> None:
    lengths = {"input_tokens": [1], "output_tokens": [1], "session": ["x"], "answer_s": [2.0]}
    path = write_columns(tmp_path / "a", arrival_s=[0.0], **lengths)
    assert [(each.session, each.answer_s) for each in traces.read_trace(path)] == [(None, 2.0)]


def test_a_session_that_no_column_holds_is_refused(arrow: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a session has over 64 bits"):
        write_parquet([Request(0.0, 1, 1, session=2**63)], tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_what_was_read_of_a_file_is_not_held(arrow: Any, tmp_path: Path) -> None:
    """However many row groups there are, as much of pyarrow's memory is used as for a few."""
    import pyarrow.parquet as pq

    path, held = tmp_path / "trace.parquet", list[int]()
    for groups in (20, 80):
        rows = 5000 * groups
        lengths = np.random.default_rng(0).integers(1, 10**9, rows)
        columns = dict.fromkeys(("input_tokens", "output_tokens"), lengths)
        table = arrow.table({"arrival_s": np.arange(float(rows)), **columns})
        pq.write_table(table, path, row_group_size=5000)
        del table
        before = arrow.total_allocated_bytes()
        held.append(
            max(arrow.total_allocated_bytes() - before for _ in read_groups(path, DEFAULTS))
        )
    assert held[1] < 1.2 * held[0]
    assert 4 * held[1] < path.stat().st_size
