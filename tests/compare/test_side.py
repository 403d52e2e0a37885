"""Sides: which records they name, and when their launches began."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsv4kv.compare.side import count_launches, list_launched, load_side
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.runs.store import save_record
from tests.compare.launched import make_launched_record, make_side


def save(folder: Path, seed: int) -> Path:
    return save_record(make_launched_record(seed=seed, run_id=f"run-{seed}"), folder).path


def test_a_side_is_a_file_several_files_or_a_folder(tmp_path: Path) -> None:
    paths = [save(tmp_path, seed) for seed in range(3)]
    (tmp_path / ".index.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert [r.run_id for r in load_side(str(paths[1])).records] == ["run-1"]
    assert [r.run_id for r in load_side(f"{paths[2]},{paths[0]}").records] == ["run-2", "run-0"]
    assert [r.run_id for r in load_side(str(tmp_path)).records] == ["run-0", "run-1", "run-2"]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no records"):
        load_side(str(tmp_path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        load_side(f"{save(tmp_path, 0)},{tmp_path / 'gone.json'}")


def test_launches_know_when_they_began() -> None:
    side = make_side("A", make_launched_record(3))
    for launched in list_launched(side).values():
        minutes = [datetime.fromtimestamp(each.began_s, UTC).minute for each in launched]
        assert minutes == [0, 1, 2]


def test_a_run_of_one_process_is_one_launch_that_began_with_the_run() -> None:
    records = [make_launched_record(1, seed=seed, launches=[]) for seed in range(2)]
    side = make_side("A", *records)
    assert count_launches(side) == 2
    (step,) = (v for q, v in list_launched(side).items() if q.name == "step")
    assert [each.process for each in step] == [(0, 0), (1, 0)]
    assert {each.began_s for each in step} == {
        datetime.fromisoformat(records[0].started_utc).timestamp()
    }


@pytest.mark.parametrize("text", ["{},", ",{}", "{},,{}", ","])
def test_nothing_beside_a_comma_is_refused_and_not_taken_for_this_folder(
    tmp_path: Path, text: str
) -> None:
    path = str(save(tmp_path, 0))
    with pytest.raises(ConfigError, match="has a comma with no file on one side of it"):
        load_side(text.format(path, path))
