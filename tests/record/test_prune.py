"""Which runs may go: those that fit every condition, and never what is no record."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.record.store import Entry, choose, list_entries, remove, save_record
from tests.record.records import make_case, make_record

NOW = datetime(2026, 11, 21, tzinfo=UTC)
STATUSES = ("complete", "failed", "incomplete", "complete")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of the 1st, 8th, 15th and 20th, a note, and a baseline."""
    for day, status in zip((1, 8, 15, 20), STATUSES, strict=True):
        record = make_record(
            make_case(status=status, error="why"),
            run_id=f"run-{day:02}",
            started_utc=f"2026-11-{day:02}T12:00:00+00:00",
        )
        save_record(record, tmp_path)
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "baselines").mkdir()
    save_record(make_record(run_id="main"), tmp_path / "baselines")
    return tmp_path


def days(entries: list[Entry]) -> list[int]:
    return [int(entry.file[4:6]) for entry in entries]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"keep": 1}, [1, 8, 15]),
        ({"keep": 0}, [1, 8, 15, 20]),
        ({"keep": 9}, []),
        ({"older_than_days": 10}, [1, 8]),
        ({"older_than_days": 0}, [1, 8, 15, 20]),
        ({"older_than_days": 3_000_000}, []),
        ({"older_than_days": 10**30}, []),
        ({"status": "failed"}, [8]),
        ({"status": "complete", "keep": 2}, [1]),
        ({"older_than_days": 10, "keep": 3}, [1]),
    ],
    ids=str,
)
def test_runs_go_that_fit_every_condition(
    folder: Path, options: dict[str, object], chosen: list[int]
) -> None:
    assert days(choose(list_entries(folder), now=NOW, **options)) == chosen  # type: ignore[arg-type]


def test_removing_leaves_everything_else(folder: Path) -> None:
    remove(folder, choose(list_entries(folder), keep=1, now=NOW))
    assert [entry.file for entry in list_entries(folder)] == ["notes.json", "run-20.json"]
    assert (folder / "baselines" / "main.json").exists()


def test_a_run_that_is_gone_already_is_no_trouble(folder: Path) -> None:
    chosen = choose(list_entries(folder), keep=0, now=NOW)
    (folder / chosen[0].file).unlink()
    remove(folder, chosen)
    assert [entry.file for entry in list_entries(folder)] == ["notes.json"]


def test_an_unknown_status_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="choose complete, incomplete, failed"):
        choose(list_entries(folder), status="fine")
