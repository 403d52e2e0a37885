"""Sides: which records they name, and when their launches began."""

from pathlib import Path

import pytest

from dsv4kv.bench.compare.comparison import load_side
from dsv4kv.errors import ConfigError
from dsv4kv.runs.store import save_record
from tests.bench.compare.launched import make_launched_record


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
