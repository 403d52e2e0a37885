"""Requests read as columns are those read one by one; both ways refuse the same, word for word."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces import ReadOptions, read_batches, read_trace
from dsv4kv.traces.request import Batch, IdRuns, Request, batches_of, signed

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


def test_requests_made_into_columns_keep_ids_of_all_kinds() -> None:
    requests = [
        Request(0.5, 9, 1),
        Request(1.0, 9, 0, (1, 2, 7), 4),
        Request(2.0, 9, 3, IdRuns.of([3, 4, 5]), 4),
    ]
    (batch,) = batches_of(requests)
    assert rows_of([batch]) == list(map(row_of, requests))
    assert batch.hash_block_tokens == 4
