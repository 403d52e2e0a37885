"""Records that earlier programs wrote are still read."""

import json
from pathlib import Path

from dsv4kv.record.store import dumps, load_record, loads
from dsv4kv.view.exports import to_rows
from dsv4kv.view.runs import report_record
from tests.view.terminal import shown

DATA = Path(__file__).parent / "data"
FIRST = DATA / "record-v1-first.json"  # before launches, telemetry and the digest


def test_the_first_records_load_with_what_they_did_not_know_at_its_default() -> None:
    record = load_record(FIRST)
    assert "launches" not in json.loads(FIRST.read_text())
    assert record.launches == []
    assert {case.launch for case in record.cases} == {0}
    samples_ns = record.cases[0].operations[0].samples_ns
    assert samples_ns == [417_000, 421_500, 419_250, 430_000, 418_100, 425_000]


def test_the_first_records_are_told_and_exported_as_any() -> None:
    record = load_record(FIRST)
    assert "gather_topk" in shown(*report_record(record))
    assert [row["name"] for row in to_rows(record)] == ["gather_topk", "step"]


def test_the_first_records_can_be_saved_anew_with_a_digest() -> None:
    record = load_record(FIRST)
    assert loads(dumps(record), "anew") == record
