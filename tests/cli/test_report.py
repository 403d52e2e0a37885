"""``dsv4kv report``."""

from pathlib import Path

import pytest
import typer
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from dsv4kv.cli.report import report
from dsv4kv.errors import RecordError
from dsv4kv.report.store import dumps, save_record
from tests.report.records import make_record
from tests.report.terminal import told

app = typer.Typer(add_completion=False)
app.command("report")(report)
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_record(make_record(), tmp_path).path


def run(*arguments: str) -> str:
    result = CliRunner(env=TERMINAL).invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return "\n".join(line.rstrip() for line in result.output.splitlines())


def test_a_saved_run_is_told_as_when_it_ended(saved: Path) -> None:
    assert run(str(saved)) == told(make_record())


def test_json_gives_the_record_itself(saved: Path) -> None:
    assert run(str(saved), "--json") + "\n" == dumps(make_record()) == saved.read_text()


def test_a_file_that_is_no_record_is_left_to_the_program_to_tell(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        run(str(tmp_path / "gone.json"))


def test_help_names_the_file_and_the_option(snapshot: SnapshotAssertion) -> None:
    assert run("--help") == snapshot
