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


def test_show_prints_the_default_as_documented_yaml(snapshot: SnapshotAssertion) -> None:
    result = run("show")
    assert result.exit_code == 0
    assert result.output == snapshot


@pytest.mark.parametrize("name", shipped_names())
def test_what_show_prints_is_the_same_configuration(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(run("show", name).output, encoding="utf-8")
    assert load_config(str(path)).config == load_config(name).config


def test_schema_as_json_is_the_json_schema() -> None:
    assert json.loads(run("schema", "--json").output) == BenchConfig.model_json_schema()
