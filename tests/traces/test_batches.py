"""Requests as columns are the requests."""

from collections.abc import Iterable
from pathlib import Path

from dsv4kv.traces import read_batches, write_trace
from dsv4kv.traces.request import Batch, IdRuns, Request, batches_of, signed

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


def row_of(request: Request) -> Row:
    ids = tuple(signed(request.prefix_hashes))
    return request.arrival_s, request.input_tokens, request.output_tokens, ids


def test_requests_made_into_columns_keep_ids_of_all_kinds() -> None:
    requests = [
        Request(0.5, 9, 1),
        Request(1.0, 9, 0, (1, 2, 7), 4),
        Request(2.0, 9, 3, IdRuns.of([3, 4, 5]), 4),
    ]
    (batch,) = batches_of(requests)
    assert rows_of([batch]) == list(map(row_of, requests))
    assert batch.hash_block_tokens == 4


def test_a_trace_is_read_as_columns_some_at_a_time(tmp_path: Path) -> None:
    trace = [Request(float(n), 9, n, (n, n + 1, 7), 4) for n in range(1000)]
    write_trace(trace, tmp_path / "trace")
    batches = list(read_batches(tmp_path / "trace"))
    assert rows_of(batches) == list(map(row_of, trace))
    assert len(batches) == 4
