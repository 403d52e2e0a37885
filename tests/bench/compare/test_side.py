"""Sides: which records they name, and when their launches began."""

from pathlib import Path

import pytest

from dsv4kv.bench.compare.side import load_baseline, load_side, save_baseline
from dsv4kv.errors import ConfigError
from dsv4kv.runs.store import save_record
from tests.bench.compare.launched import make_launched_record, make_side


def save(folder: Path, seed: int) -> Path:
    return save_record(make_launched_record(seed=seed, run_id=f"run-{seed}"), folder).path


def test_a_side_is_a_file_several_files_or_a_folder(tmp_path: Path) -> None:
    paths = [save(tmp_path, seed) for seed in range(3)]
    (tmp_path / ".index.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert [r.run_id for r in load_side(str(paths[1])).records] == ["run-1"]
    assert [r.run_id for r in load_side(f"{paths[2]},{paths[0]}").records] == ["run-2", "run-0"]
    assert [r.run_id for r in load_side(str(tmp_path)).records] == ["run-0", "run-1", "run-2"]


@pytest.mark.parametrize("text", ["{},", ",{}", "{},,{}", ","])
def test_nothing_beside_a_comma_is_refused_and_not_taken_for_this_folder(
    tmp_path: Path, text: str
) -> None:
    path = str(save(tmp_path, 0))
    with pytest.raises(ConfigError, match="has a comma with no file on one side of it"):
        load_side(text.format(path, path))


SIDE = make_side("run.json", make_launched_record(seed=1))


def test_a_missing_baseline_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has none: save one with"):
        load_baseline("main", tmp_path)
    save_baseline(SIDE, "release-1", tmp_path)
    with pytest.raises(ConfigError, match="has release-1: save one with"):
        load_baseline("main", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "a b", "x" * 65])
def test_a_name_that_would_leave_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    for use in (
        lambda: save_baseline(SIDE, name, tmp_path),
        lambda: load_baseline(name, tmp_path),
    ):
        with pytest.raises(ConfigError, match="is no name for a baseline"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_side_of_several_records_is_no_baseline(tmp_path: Path) -> None:
    records = [make_launched_record(seed=seed) for seed in range(2)]
    with pytest.raises(ConfigError, match=r"is 2 records and a baseline is one"):
        save_baseline(make_side("A", *records), "main", tmp_path)
