"""A recording's requests become those of a trace, and take little memory until then."""

import tracemalloc
from pathlib import Path

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.record.convert import count_requests, describe, read_recording
from dsv4kv.record.folder import Record, Recording
from dsv4kv.record.server import Live


def counted(rows: list[Record]) -> tuple[int, int]:
    """How many requests the status line and a watched recording have of rows."""
    live = Live()
    for row in rows:
        live.hear("requests", row)
    return live.requests, count_requests(rows)


def recorded(folder: Path, rows: list[Record]) -> Path:
    with Recording(folder) as recording:
        for row in rows:
            recording.write("requests", {"source": "proxy:0", "grain": 64} | row)
    return folder


def test_the_ids_of_a_recording_take_little_more_than_eight_bytes_each(tmp_path: Path) -> None:
    requests, ids = 60, 4_000
    folder = recorded(
        tmp_path / "server",
        [
            {"arrival_s": float(n), "input_tokens": ids * 64, "ids": [n + 2**61] * ids}
            for n in range(requests)
        ],
    )
    read_recording(folder)  # what is imported is not counted
    tracemalloc.start()
    try:
        found = read_recording(folder)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.requests[-1].prefix_hashes) == ids
    assert held < 9 * requests * ids
    assert peak < 12 * requests * ids


def test_sessions_are_numbered_and_answers_have_their_times(tmp_path: Path) -> None:
    rows: list[Record] = [
        {"arrival_s": 7.5, "input_tokens": 5, "session": 2**60, "last_s": 9.0},
        {"arrival_s": 5.0, "input_tokens": 5, "session": 2**61, "last_s": 5.25},
        {"arrival_s": 8.0, "input_tokens": 5, "session": 2**61},
        {"arrival_s": 9.0, "input_tokens": 5},
    ]
    found = read_recording(recorded(tmp_path / "server", rows)).requests
    assert [request.session for request in found] == [0, 1, 0, None]
    assert [request.answer_s for request in found] == [0.25, 1.5, None, None]


ASKED: Record = {"source": "proxy:0", "arrival_s": 1.0, "status": 200, "end": "done"}


def test_requests_of_unknown_length_are_left_out_and_that_is_told(tmp_path: Path) -> None:
    failed = [ASKED | {"status": 503}, ASKED | {"status": 0, "end": "client left"}]
    cut = ASKED | {"end": "client left"}
    rows, live = [ASKED | {"input_tokens": 300}, ASKED, cut, *failed], Live()
    for row in rows:
        live.hear("requests", row)
    read = read_recording(recorded(tmp_path / "server", rows))
    assert (len(read.requests), read.unsized, live.without_usage) == (1, 2, 2)
    said = "; ".join(describe(read))
    assert "2 requests skipped: their length is not known: answers had no usage" in said
    with pytest.raises(TraceError, match="2 requests recorded, and of none is the length known"):
        read_recording(recorded(tmp_path / "other", [ASKED, ASKED]))


def test_every_exchange_is_a_request_whatever_its_answers_id(tmp_path: Path) -> None:
    rows = [ASKED | {"arrival_s": float(n), "input_tokens": 64 + n, "id": 7} for n in range(240)]
    log: Record = {"source": "requests:0:1", "id": 7, "arrival_s": 500.0, "input_tokens": 64}
    read = read_recording(recorded(tmp_path, [*rows, log]))
    assert [each.input_tokens for each in read.requests] == [*range(64, 304), 64]
    assert counted([*rows, log]) == counted([log, *rows]) == (241, 241)  # the log's by itself


A: Record = {"source": "requests:0:a", "id": 7}
B: Record = {"source": "requests:0:b", "id": 7}
BEGUN = [A | {"arrival_s": float(n), "input_tokens": 64 + n} for n in range(20)]


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        (  # two servers whose clients count their requests
            [A | {"arrival_s": 0.0, "last_s": 1.0, "input_tokens": 64},
             B | {"arrival_s": 1000.0, "last_s": 1001.0, "input_tokens": 64}], [64, 64]),
        (  # the log and the export of one server, in time zones an hour and a half apart
            [A | {"arrival_s": 0.0, "last_s": 1.0, "input_tokens": 64},
             B | {"arrival_s": 5400.2, "last_s": 5401.0, "input_tokens": 64}], [64]),
        (  # a server an hour east of the proxy, which logs a long prompt after seconds
            [ASKED | {"id": 7, "input_tokens": 64},
             A | {"arrival_s": 3604.0, "input_tokens": 64}], [64]),
        (  # a log that was rotated, and a clock that is off
            [A | {"arrival_s": 0.0, "input_tokens": 64},
             B | {"arrival_s": 3.0, "last_s": 9.0, "input_tokens": 64}], [64]),
        (  # a client that repeats its id, in flight together and one after the other
            [*BEGUN, *(row | {"last_s": 100.0} for row in BEGUN)], [*range(64, 84)]),
        ([both for row in BEGUN for both in (row, row | {"last_s": 100.0})], [*range(64, 84)]),
        (  # in flight together, and the second ends first
            [A | {"arrival_s": 0.0, "input_tokens": 64},
             A | {"arrival_s": 1.0, "input_tokens": 96},
             A | {"arrival_s": 1.0, "last_s": 2.0, "input_tokens": 96},
             A | {"arrival_s": 0.0, "last_s": 9.0, "input_tokens": 64}], [64, 96]),
        (  # one through a proxy, two past it
            [ASKED | {"id": 7, "input_tokens": 64},
             A | {"arrival_s": 1.1, "last_s": 2.0, "input_tokens": 64},
             A | {"arrival_s": 101.0, "last_s": 102.0, "input_tokens": 64},
             A | {"arrival_s": 2.0, "last_s": 3.0, "input_tokens": 32}], [64, 32, 64]),
    ],
)  # fmt: skip
def test_rows_that_agree_are_one(rows: list[Record], lengths: list[int], tmp_path: Path) -> None:
    read = read_recording(recorded(tmp_path, rows))
    assert [each.input_tokens for each in read.requests] == lengths
    assert counted(rows) == (len(lengths), len(lengths))


def test_a_log_of_another_time_zone_tells_how_long_it_took(tmp_path: Path) -> None:
    log: Record = {"source": "requests:0:1", "id": 7, "input_tokens": 64}
    rows = [log | {"arrival_s": 9 * 3600.0}, log | {"arrival_s": 0.0, "last_s": 2.0}]
    (request,) = read_recording(recorded(tmp_path, rows)).requests
    assert (request.arrival_s, request.answer_s) == (0.0, 2.0)


@pytest.mark.parametrize("first", ["log", "proxy"])
def test_what_a_log_says_of_an_exchange_is_of_that_request(first: str, tmp_path: Path) -> None:
    log: Record = {"source": "requests:0:1", "id": 7, "arrival_s": 0.5, "cached_tokens": 32}
    log |= {"ids": [5], "input_tokens": 64}
    exchange = ASKED | {"id": 7, "input_tokens": 64, "ids": [9], "ids_of": "text"}
    rows = [log, exchange] if first == "log" else [exchange, log]
    read = read_recording(recorded(tmp_path, rows))
    (request,) = read.requests
    assert (list(request.prefix_hashes), read.ids_of) == ([5], ["tokens"])
    assert read.cached_tokens == [32]
    assert counted(rows) == (1, 1)
