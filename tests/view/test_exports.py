"""Exports: the same numbers as the record, in forms that other programs read."""

import csv
import io
import json

import pytest

from dsv4kv.view.runs import to_csv, to_rows
from tests.runs.records import make_record, make_sweep_cases


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


@pytest.mark.parametrize("name", ['=cmd|"/c calc"!A1', "+1", "-1", "@SUM(1)", "\t=1"])
def test_a_spreadsheet_calculates_no_name(name: str) -> None:
    case = make_record().cases[0].model_copy(update={"backend": name})
    rows = csv.DictReader(io.StringIO(to_csv([make_record(case)])))
    assert {row["backend"] for row in rows} == {f"'{name}"}
