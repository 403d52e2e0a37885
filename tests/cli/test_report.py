"""``dsv4kv report``."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner

from dsv4kv.cli.report import report
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import dumps, save_record, schema_text
from dsv4kv.view.exports import to_csv, to_json_lines, to_markdown
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


def test_a_file_that_is_no_record_is_left_to_the_program_to_tell(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        run(str(tmp_path / "gone.json"))


def test_help_names_the_file_and_the_option(snapshot: SnapshotAssertion) -> None:
    assert run("--help") == snapshot


def test_several_runs_are_told_one_after_the_other(saved: Path, tmp_path: Path) -> None:
    other = save_record(make_record(run_id="other"), tmp_path).path
    assert run(str(saved), str(other)) == (
        shown(*report_record(make_record(), saved), *report_record(make_record(), other))
    )


@pytest.mark.parametrize(
    ("name", "write"), [("csv", to_csv), ("jsonl", to_json_lines), ("markdown", to_markdown)]
)
def test_an_export_is_printed_and_nothing_else(
    saved: Path, name: str, write: Callable[[Sequence[RunRecord]], str]
) -> None:
    assert run(str(saved), "--export", name).strip() == write([make_record()]).strip()


def test_the_schema_is_printed_without_a_run() -> None:
    assert run("--schema") + "\n" == schema_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--json", "--export", "csv"],
        ["--export", "csv", "--html", "page.html"],
        ["--charts", "charts", "--json"],
        ["--schema", "--json"],
    ],
    ids=" ".join,
)
def test_two_forms_at_once_are_refused_and_nothing_is_written(
    saved: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    with pytest.raises(ConfigError, match=r"were given: choose one of them\.$"):
        run(str(saved), *options)
    assert list(saved.parent.iterdir()) == [saved]


def test_an_unknown_export_and_no_run_at_all_are_refused(saved: Path) -> None:
    with pytest.raises(ConfigError, match="choose csv, jsonl, markdown"):
        run(str(saved), "--export", "xml")
    with pytest.raises(RecordError, match="no record was named"):
        run()
