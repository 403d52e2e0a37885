"""Run records as pandas frames: rows as in the record, one frame for each question."""

import sys
from pathlib import Path

import pytest

import dsv4kv
from dsv4kv.errors import RecordError
from dsv4kv.runs.schema import Case
from dsv4kv.runs.store import save_record
from dsv4kv.view.exports import Records
from tests.runs.records import make_case, make_failed_case, make_record

pandas = pytest.importorskip("pandas")
FIRST = ["run_id", "config", "status", "device", "backend"]


def records(*cases: Case) -> Records:
    return Records((make_record(*cases),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two records, and other files that `results` keeps there."""
    for run_id in ("a", "b"):
        save_record(make_record(run_id=run_id), tmp_path)
    (tmp_path / "notes.txt").write_text("no record")
    return tmp_path


@pytest.mark.parametrize("source", ["{}", "{}/*.json", "{}/?.json", "{}/**/[ab].json"])
def test_records_are_files_folders_and_patterns(source: str, folder: Path) -> None:
    runs = dsv4kv.load_records(source.format(folder))
    assert [record.run_id for record in runs.records] == ["a", "b"]


def test_a_record_that_is_named_twice_is_read_once(folder: Path) -> None:
    runs = dsv4kv.load_records(folder / "b.json", folder)
    assert [record.run_id for record in runs.records] == ["b", "a"]


@pytest.mark.parametrize("source", ["none.json", "*.json", "."])
def test_a_source_without_records_is_a_sentence(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match="names no record: give a file that"):
        dsv4kv.load_records(source)


def test_a_file_that_is_no_record_is_a_sentence(folder: Path) -> None:
    with pytest.raises(RecordError, match=r"notes\.txt"):
        dsv4kv.load_records(folder / "notes.txt")


def test_without_pandas_there_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'dsv4kv\[pandas\]'"):
        dsv4kv.load_records(folder)


def test_a_sample_is_a_row_with_its_time_and_bytes() -> None:
    (operation, *_), frame = (case := make_case()).operations, records(case).samples
    rows = frame[(frame.name == operation.name) & (frame.layer_type == operation.layer_type)]
    assert list(rows.time_ns) == operation.samples_ns
    assert list(rows.bytes) == operation.bytes
    assert list(rows.call) == list(range(len(operation.samples_ns)))
    (steps,) = (each.samples_ns for each in case.latencies if each.name == "step")
    assert list(frame[frame.name == "step"].time_ns) == steps
    assert frame[frame.name == "step"].bytes.isna().all()


def test_a_case_is_a_row_whether_it_ran_or_not() -> None:
    case = make_case()
    frame = records(case, make_failed_case("no block is free")).cases
    assert list(frame.columns[:5]) == FIRST
    assert list(frame.status) == ["complete", "failed"]
    assert frame.error[0] is None or pandas.isna(frame.error[0])
    assert frame.error[1] == "no block is free"
    assert case.totals
    assert case.cache
    assert frame["totals.steps"][0] == case.totals.steps
    assert frame["cache.formats.main"][0] == case.cache.formats["main"]
