"""Exports: the same numbers as the record, in forms that other programs read."""

import csv
import io
import json

from dsv4kv.view.exports import to_csv, to_json_lines, to_markdown, to_rows
from tests.bench.compare.launched import make_launched_record
from tests.runs.records import make_failed_case, make_record, make_sweep_cases


def test_there_is_a_row_per_quantity_and_launch() -> None:
    record = make_launched_record(3)
    rows = to_rows(record)
    assert [(row["launch"], row["name"]) for row in rows] == [
        (launch, name)
        for launch in range(3)
        for name in ("gather_topk", "flush", "window_insert", "step")
    ]


def test_csv_has_a_column_per_swept_setting_and_empty_cells_where_none_was_swept() -> None:
    text = to_csv([make_record(), make_record(*make_sweep_cases())])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["axis.cache.block_tokens"] for row in rows} == {"", "128", "256"}
    first = to_rows(make_record())[0]
    assert float(rows[0]["median_ns"]) == first["median_ns"]
    assert rows[0]["p99_ns"] == ("" if first["p99_ns"] is None else str(first["p99_ns"]))


def test_csv_survives_settings_with_commas_and_lists() -> None:
    case = make_record().cases[0].model_copy(
        update={"axis": {"model.layers": [0, 2], "name": 'a, "b"'}}
    )  # fmt: skip
    (row, *_) = csv.DictReader(io.StringIO(to_csv([make_record(case)])))
    assert json.loads(row["axis.model.layers"]) == [0, 2]
    assert row["axis.name"] == 'a, "b"'


def test_a_record_without_samples_exports_nothing_and_does_not_fail() -> None:
    record = make_record(make_failed_case())
    assert to_rows(record) == []
    assert to_json_lines([record]) == ""
    assert to_csv([record]) == "\n"
    assert record.run_id in to_markdown([record])


def test_markdown_has_a_row_per_quantity_with_launches_together() -> None:
    lines = to_markdown([make_launched_record(7)]).splitlines()
    assert lines[0] == "**run-0** (configs/bench/default.yaml, 7 launches, 6 of 43 layers)"
    assert lines[2:4] == ["| quantity | launches | median, µs | GB/s |", "|---|---:|---:|---:|"]
    rows = [line.strip("| ").split(" | ") for line in lines[4:] if line]
    assert [(row[0], row[1]) for row in rows] == [
        ("gather_topk csa", "7"), ("flush csa", "7"), ("window_insert csa", "7"), ("step", "7"),
    ]  # fmt: skip
    assert "±" in rows[0][2]
    assert "±" in rows[0][3]


def test_markdown_keeps_names_whole_whatever_they_are_made_of() -> None:
    case = make_record().cases[0].model_copy(update={"axis": {"name": "a|b – c"}})
    source = "a\n\n# b ![c](http://host/d.png) <img src=e>"
    written = to_markdown([make_record(case, config_source=source)])
    assert "| name=a\\|b – c: gather_topk csa |" in written
    assert "(a  # b ![c]\\(http://host/d.png) &lt;img src=e>, " in written
