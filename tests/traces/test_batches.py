"""Requests read as columns are those read one by one; both ways refuse the same, word for word."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import FORMATS, ReadOptions, read_batches, read_trace
from dsv4kv.traces.batch import Batch, batches_of
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import IdRuns, signed

Row = tuple[float, int, int, tuple[int, ...]]

PLAIN = {"timestamp": 7, "input_length": 1100, "output_length": 1, "hash_ids": [4, 5, 9]}
IDS_16 = list(range(69))  # as many as 1,100 tokens have of 16
FILLED = {"mooncake": PLAIN, "bailian": PLAIN | {"parent_chat_id": -1, "hash_ids": IDS_16}}


def text(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


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


def row_of(request: Request) -> Row:
    ids = tuple(signed(request.prefix_hashes))
    return request.arrival_s, request.input_tokens, request.output_tokens, ids


def both_ways(path: Path, name: str = "auto") -> tuple[list[Row] | str, list[Row] | str]:
    """What reading as columns and one by one gives, or the sentence that refuses it."""

    def told(read: object) -> list[Row] | str:
        try:
            if read is read_batches:
                return rows_of(read_batches(path, name))
            return list(map(row_of, read_trace(path, name)))
        except TraceError as error:
            return str(error)

    return told(read_batches), told(read_trace)


def plain(name: str, count: int) -> list[dict[str, object]]:
    return [
        FILLED[name] | {"timestamp": number, "output_length": number} for number in range(count)
    ]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", FILLED)
def test_columns_tell_what_the_requests_do(name: str, compressed: bool, tmp_path: Path) -> None:
    content = text(*plain(name, 1000))  # of several chunks
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(content) if compressed else content)
    columns, rows = both_ways(path)
    assert columns == rows
    assert len(rows) == 1000


ODD = {
    "unsigned ids": text(PLAIN | {"hash_ids": [2**64 - 2, 2**64 - 1, 3]}),
    "signed ids": text(PLAIN | {"hash_ids": [-3, -2, 3]}),
    "signed beside unsigned": text(PLAIN | {"hash_ids": [-3, 2**63, 3]}),
    "id that no run can end with": text(PLAIN | {"hash_ids": [1, 2, 2**63 - 1]}),
    "id of 65 bits": text(PLAIN | {"hash_ids": [1, 2, 2**64]}),
    "bool among ids": text(PLAIN | {"hash_ids": [1, 2, True]}),
    "float among ids": text(PLAIN | {"hash_ids": [1, 2, 3.0]}),
    "no list of ids": text(PLAIN | {"hash_ids": "abc"}),
    "object for ids": text(PLAIN | {"hash_ids": {"1": 2}}),
    "too few ids": text(PLAIN | {"hash_ids": [1, 2]}),
    "too many ids": text(PLAIN | {"hash_ids": [1, 2, 3, 4]}),
    "fraction of a millisecond": text(PLAIN | {"timestamp": 7.3}),
    "time that is not a number": text(PLAIN | {"timestamp": float("nan")}),
    "time beyond all floats": text(PLAIN | {"timestamp": 10**400}),
    "bool for a time": text(PLAIN | {"timestamp": True}),
    "text for a time": text(PLAIN | {"timestamp": "7"}),
    "clock that runs backwards": text(PLAIN | {"timestamp": 6}),
    "zero prompt": text(PLAIN | {"input_length": 0, "hash_ids": []}),
    "absurd prompt": text(PLAIN | {"input_length": 2**31}),
    "prompt of 65 bits": text(PLAIN | {"input_length": 2**64}),
    "bool for a length": text(PLAIN | {"output_length": True}),
    "negative output": text(PLAIN | {"output_length": -1}),
    "missing field": text({"timestamp": 7}),
    "array": text([PLAIN]),
    "number": b"1\n",
    "text": b'"timestamp"\n',
    "nothing": b"\n \n",
    "two objects": text(PLAIN).rstrip() + b" " + text(PLAIN),
    "two objects and a comma": text(PLAIN).rstrip() + b"," + text(PLAIN),
    "an object over two lines": text(PLAIN).replace(b"[", b"[\n"),
    "broken JSON": b"{oops}\n",
    "no UTF-8": b'{"a": "\xff"}\n',
    "a lone surrogate": text(PLAIN | {"a": "\ud800"}),
    "deep nesting": b"[" * 100_000 + b"\n",
    "a long line": text(PLAIN | {"a": " " * 100_000}),
    "line ends of two characters": text(PLAIN).replace(b"\n", b"\r\n"),
    "other spaces": b"\x0b\x0c\n",
    "a mark of byte order": b"\xef\xbb\xbf" + text(PLAIN),
}


@pytest.mark.parametrize("after", [b"", text(PLAIN, PLAIN), text(PLAIN, 1)])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_line_among_plain_ones_is_read_or_refused_alike(
    odd: str, after: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text(*[PLAIN] * 3) + ODD[odd] + after)
    columns, rows = both_ways(path)
    assert columns == rows


@given(st.data(), st.sampled_from(sorted(FILLED)))
def test_a_trace_with_a_few_bytes_changed_is_read_or_refused_alike(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    damaged = bytearray(text(*plain(name, 4)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)
    columns, rows = both_ways(path, name)
    assert columns == rows


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.7, 0.99])
def test_a_truncated_gzip_is_refused_alike(kept: float, tmp_path: Path) -> None:
    whole = gzip.compress(text(*plain("mooncake", 2000)))
    path = tmp_path / "trace.gz"
    path.write_bytes(whole[: int(len(whole) * kept)])
    columns, rows = both_ways(path, "mooncake")
    assert columns == rows
    assert "the gzip data ends early" in rows


@pytest.mark.parametrize("name", FILLED)
def test_the_clock_is_kept_from_one_chunk_to_the_next(name: str, tmp_path: Path) -> None:
    late = FILLED[name] | {"timestamp": 10**6}
    path = tmp_path / "trace"
    path.write_bytes(text(FILLED[name], *[late] * 500, *[FILLED[name]] * 500))
    columns, rows = both_ways(path)
    assert columns == rows
    assert ":502: the request arrives at" in rows


def test_requests_in_any_order_are_read_where_they_may_be(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text(*plain("mooncake", 500)[::-1]))
    options = ReadOptions(any_order=True)
    rows = list(map(row_of, read_trace(path, options=options)))
    assert rows_of(read_batches(path, options=options)) == rows


@pytest.mark.parametrize("name", FILLED)
def test_plain_lines_are_not_read_one_by_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text(*plain(name, 1000)))
    assert len(list(read_batches(path))) < 50
    assert all(entry.columns is None or known in FILLED for known, entry in FORMATS.items())


def test_an_array_is_read_in_batches_too(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(plain("mooncake", 1000), indent=1))
    columns, rows = both_ways(path)
    assert columns == rows
    assert len(list(read_batches(path))) == 4


def test_requests_made_into_columns_keep_ids_of_all_kinds() -> None:
    requests = [
        Request(0.5, 9, 1),
        Request(1.0, 9, 0, (1, 2, 7), 4),
        Request(2.0, 9, 3, IdRuns.of([3, 4, 5]), 4),
    ]
    (batch,) = batches_of(requests)
    assert rows_of([batch]) == list(map(row_of, requests))
    assert batch.hash_block_tokens == 4


def test_a_file_that_is_missing_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace file"):
        read_batches(tmp_path / "missing.jsonl")
