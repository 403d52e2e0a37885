"""``dsv4kv report``."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dsv4kv.cli.report import report
from dsv4kv.runs.store import dumps, save_record
from dsv4kv.view.runs import report_record
from tests.runs.records import make_record
from tests.view.terminal import shown

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
    assert run(str(saved)) == shown(*report_record(make_record(), saved))
    assert run(str(saved), "--verbose") == shown(*report_record(make_record(), verbose=True))


def test_json_gives_the_record_itself(saved: Path) -> None:
    assert run(str(saved), "--json") + "\n" == dumps(make_record()) == saved.read_text()
