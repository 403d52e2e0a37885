"""Baselines: kept under a name, replaced whole, never half-written."""

import errno
from pathlib import Path

import pytest

from dsv4kv.compare.side import list_baselines, load_baseline, save_baseline
from dsv4kv.errors import ConfigError, RecordError
from tests.compare.launched import make_launched_record, make_side

SIDE = make_side("run.json", make_launched_record(seed=1))


def test_a_baseline_is_the_record_that_was_saved(tmp_path: Path) -> None:
    path = save_baseline(SIDE, "main", tmp_path)
    assert path == tmp_path / "baselines" / "main.json"
    assert load_baseline("main", tmp_path).records == SIDE.records
    assert load_baseline("main", tmp_path).name == "main"


def test_a_baseline_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    save_baseline(SIDE, "main", tmp_path)
    other = make_side("other.json", make_launched_record(seed=2))
    save_baseline(other, "main", tmp_path)
    assert load_baseline("main", tmp_path).records == other.records
    assert list_baselines(tmp_path) == ["main"]


def test_a_full_disk_leaves_the_baseline_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_baseline(SIDE, "main", tmp_path)

    def fail(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RecordError, match="No space left on device"):
        save_baseline(make_side("B", make_launched_record(seed=2)), "main", tmp_path)
    monkeypatch.undo()
    assert load_baseline("main", tmp_path).records == SIDE.records
    assert [path.name for path in (tmp_path / "baselines").iterdir()] == ["main.json"]


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
