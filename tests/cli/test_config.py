import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config, shipped_names


def run(*arguments: str) -> Result:
    terminal = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=terminal).invoke(app, ["config", *arguments])


@pytest.mark.parametrize("command", ["", "show", "validate", "schema"])
def test_help_tells_what_the_command_does(command: str, snapshot: SnapshotAssertion) -> None:
    assert run(*command.split(), "--help").output == snapshot


def test_show_prints_the_default_as_documented_yaml(snapshot: SnapshotAssertion) -> None:
    result = run("show")
    assert result.exit_code == 0
    assert result.output == snapshot


@pytest.mark.parametrize("name", shipped_names())
def test_what_show_prints_is_the_same_configuration(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(run("show", name).output, encoding="utf-8")
    assert load_config(str(path)).config == load_config(name).config


def test_show_applies_overrides_in_their_order() -> None:
    shown = run("show", "smoke", "--set", "cache.block_tokens=1K", "--set", "name=a", "--set",
                "name=b").output.splitlines()  # fmt: skip
    assert {"  block_tokens: 1024", "name: b"} <= set(shown)


def test_show_refuses_a_wrong_override() -> None:
    result = run("show", "--set", "cache.block_tokens=100")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: --set cache.block_tokens=100: cache.block_tokens is 100: "
        "give an integer above 0, a multiple of 128.\n"
    )


def test_validate_says_ok_for_every_right_configuration() -> None:
    result = run("validate", *shipped_names())
    assert result.output.splitlines() == [f"OK: {name}" for name in shipped_names()]
    assert result.exit_code == 0


def test_validate_tells_every_problem_goes_on_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text("name: 1\ncache: {sharing: all}\n", encoding="utf-8")
    result = run("validate", "wrong.yaml", "smoke", "missing.yaml")
    assert result.output.splitlines() == [
        "error: wrong.yaml:1: name is 1: give text (quote it to make it text).",
        "error: wrong.yaml:2: cache.sharing is 'all': give one of model, type, layer.",
        "OK: smoke",
        (
            "error: configuration 'missing.yaml' cannot be read (No such file or directory): give "
            "the path of a YAML file or a shipped name (bookkeeping, default, gpu, smoke)."
        ),
    ]
    assert result.exit_code == 2


def test_schema_explains_every_key(snapshot: SnapshotAssertion) -> None:
    result = run("schema")
    assert result.exit_code == 0
    assert result.output == snapshot


def test_schema_as_json_is_the_json_schema() -> None:
    assert json.loads(run("schema", "--json").output) == BenchConfig.model_json_schema()
