"""The index of a folder: right whatever happens to it, and cheap when nothing has."""

import errno
import json
import threading
from pathlib import Path

import pytest

from dsv4kv.errors import RecordError
from dsv4kv.record.store import INDEX, list_entries, load_record, save_record
from tests.record.records import make_case, make_record


def save(folder: Path, run_id: str, status: str = "complete") -> Path:
    return save_record(make_record(make_case(status=status), run_id=run_id), folder).path


def names(folder: Path) -> list[str]:
    return [entry.file for entry in list_entries(folder)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the records that were read."""
    found: list[str] = []

    def counted(path: Path) -> object:
        found.append(path.name)
        return load_record(path)

    monkeypatch.setattr("dsv4kv.record.store.load_record", counted)
    return found


def test_every_record_is_told_by_name(tmp_path: Path) -> None:
    save(tmp_path, "2-second")
    save(tmp_path, "1-first", "incomplete")
    first, second = list_entries(tmp_path)
    assert (first.file, second.file) == ("1-first.json", "2-second.json")
    assert first.summary
    assert (first.summary.run_id, first.summary.status) == ("1-first", "incomplete")
    assert (first.summary.cases, first.summary.launches) == (1, 1)
    assert first.summary.backends == ["cpu"]


def test_an_empty_folder_has_no_entries_and_a_missing_one_is_told(tmp_path: Path) -> None:
    assert list_entries(tmp_path) == []
    with pytest.raises(RecordError, match="No such file"):
        list_entries(tmp_path / "gone")


def test_a_link_in_a_circle_hides_no_record(tmp_path: Path) -> None:
    save(tmp_path, "1")
    (tmp_path / "2.json").symlink_to("2.json")
    assert names(tmp_path) == ["1.json"]


def test_a_second_list_reads_no_record_again(tmp_path: Path, read: list[str]) -> None:
    save(tmp_path, "1")
    first = list_entries(tmp_path)
    assert list_entries(tmp_path) == first
    assert read == ["1.json"]


def test_only_what_is_new_or_changed_is_read(tmp_path: Path, read: list[str]) -> None:
    for name in "123":
        save(tmp_path, name)
    list_entries(tmp_path)
    read.clear()
    save(tmp_path, "2", "failed")
    save(tmp_path, "4")
    (tmp_path / "3.json").unlink()
    assert names(tmp_path) == ["1.json", "2.json", "4.json"]
    assert read == ["2.json", "4.json"]


def test_a_run_that_was_replaced_by_one_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    path = save(tmp_path, "1")
    list_entries(tmp_path)
    size = path.stat().st_size
    save_record(make_record(run_id="1", config_source="configs/bench/another.yaml"), tmp_path)
    assert path.stat().st_size == size
    (entry,) = list_entries(tmp_path)
    assert entry.summary
    assert entry.summary.config == "configs/bench/another.yaml"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"entries": [{}]}', '{"version": 9, "entries": []}', "\x00\xff"],
)
def test_a_damaged_index_is_made_anew(tmp_path: Path, text: str) -> None:
    save(tmp_path, "1")
    whole = list_entries(tmp_path)
    (tmp_path / INDEX).write_text(text, "utf-8")
    assert list_entries(tmp_path) == whole
    assert json.loads((tmp_path / INDEX).read_text())["entries"]


def test_an_index_whose_times_are_none_is_made_anew(tmp_path: Path) -> None:
    save(tmp_path, "1")
    whole = list_entries(tmp_path)
    (started,) = (entry.summary.started_utc for entry in whole if entry.summary)
    text = (tmp_path / INDEX).read_text()
    (tmp_path / INDEX).write_text(text.replace(started, "soon"))
    assert list_entries(tmp_path) == whole


def test_an_index_cut_anywhere_loses_nothing(tmp_path: Path) -> None:
    for name in "123":
        save(tmp_path, name)
    whole = list_entries(tmp_path)
    content = (tmp_path / INDEX).read_bytes()
    for length in range(0, len(content), 97):
        (tmp_path / INDEX).write_bytes(content[:length])
        assert list_entries(tmp_path) == whole


def test_an_index_from_before_the_last_runs_is_completed(tmp_path: Path) -> None:
    """What another process leaves that listed before this one saved, and wrote after."""
    save(tmp_path, "1")
    list_entries(tmp_path)
    stale = (tmp_path / INDEX).read_bytes()
    save(tmp_path, "2")
    list_entries(tmp_path)
    (tmp_path / INDEX).write_bytes(stale)
    assert names(tmp_path) == ["1.json", "2.json"]


def test_a_full_disk_costs_the_index_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "1")
    before = list_entries(tmp_path)
    save(tmp_path, "2")

    def fail(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        assert names(tmp_path) == ["1.json", "2.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX, "1.json", "2.json"]
    assert list_entries(tmp_path)[0] == before[0]


def test_a_process_killed_while_it_writes_leaves_the_index_that_was_there(tmp_path: Path) -> None:
    save(tmp_path, "1")
    whole = list_entries(tmp_path)
    (tmp_path / f".{INDEX}.4711-abcd.tmp").write_text('{"entries": [{"fi')
    (tmp_path / ".2.json.4711-abcd.tmp").write_text('{"schema_version": 1')
    assert list_entries(tmp_path) == whole


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def work(writer: int) -> None:
        for turn in range(5):
            save(tmp_path, f"{turn}-{writer}")
            list_entries(tmp_path)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == [f"{turn}-{writer}.json" for turn in range(5) for writer in range(3)]
    assert all(entry.problem is None for entry in list_entries(tmp_path))


def test_a_file_that_is_no_record_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[]")
    (entry,) = list_entries(tmp_path)
    assert entry.summary is None
    assert entry.problem
    assert entry.problem.endswith("is JSON but not a run record: it has no schema_version.")


def test_a_file_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been a right that was missing, or a dsv4kv that was too old."""
    save(tmp_path, "1")

    def refuse(path: Path) -> None:
        raise RecordError(f"{path} cannot be read (Permission denied).")

    with monkeypatch.context() as patch:
        patch.setattr("dsv4kv.record.store.load_record", refuse)
        (entry,) = list_entries(tmp_path)
        assert entry.summary is None
    (entry,) = list_entries(tmp_path)
    assert entry.summary
    assert entry.problem is None
