"""The folder of saved runs: listed and shown by ``dsv4kv report``."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.store import save_record
from tests.bench.compare.launched import make_launched_record
from tests.cli import shell
from tests.cli.shell import text
from tests.runs.records import make_record, make_sweep_cases

run = partial(shell.invoke, "report", width=120)

RUNS = {
    "20261101T000000Z-smoke-aaaaaa": make_record(
        started_utc="2026-11-01T00:00:00+00:00", config_source="smoke"
    ),
    "20261102T000000Z-sweep-bbbbbb": make_record(
        *make_sweep_cases(), started_utc="2026-11-02T00:00:00+00:00"
    ),
    "20261103T000000Z-default-cccccc": make_launched_record(
        started_utc="2026-11-03T00:00:00+00:00"
    ),
}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, and a file that is none."""
    monkeypatch.chdir(tmp_path)
    for run_id, record in RUNS.items():
        save_record(record.model_copy(update={"run_id": run_id}), Path("results"))
    Path("results/notes.json").write_text("[]")
    return tmp_path / "results"


def test_list_tells_every_run_and_warns_of_what_is_none(snapshot: SnapshotAssertion) -> None:
    result = run("list")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: results/notes.json is JSON but not a run record: it has no schema_version.\n"
    )
    # how large a record is changes with what records hold
    assert (
        re.sub(r"[\d.]+ [KM]?i?B", lambda m: "…".rjust(len(m[0])), text(result.stdout)) == snapshot
    )


def test_a_file_whose_name_breaks_lines_is_listed_on_one(results: Path) -> None:
    (results / "a\nwarning: b\x1b[2J.json").write_text("{}")
    result = run("list")
    assert r"a\nwarning: b\x1b[2J.json" in result.stdout
    assert "\nwarning: b" not in result.output


def test_list_as_json_is_the_index() -> None:
    entries = json.loads(run("list", "--json").stdout)
    names = [entry["summary"]["run_id"] for entry in entries if entry["summary"]]
    assert names == list(RUNS)
    assert [entry["problem"] is None for entry in entries] == [True, True, True, False]


@pytest.mark.parametrize("name", ["20261101", "20261101T000000Z-smoke-aaaaaa", "aaaaaa"])
def test_a_run_is_shown_by_the_beginning_or_end_of_its_name(name: str) -> None:
    path = Path("results/20261101T000000Z-smoke-aaaaaa.json")
    assert run(name, "--json").stdout == path.read_text()


def test_a_whole_name_is_that_run_and_not_a_longer_one(results: Path) -> None:
    for name in ("run", "run-2"):
        save_record(make_record(run_id=name), results)
    assert "run, started" in run("run", "--verbose").stdout
