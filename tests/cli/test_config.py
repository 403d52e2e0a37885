from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.config.load import load_config, shipped_names


def run(*arguments: str) -> Result:
    terminal = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=terminal).invoke(app, ["config", *arguments])


@pytest.mark.parametrize("name", shipped_names())
def test_what_show_prints_is_the_same_configuration(name: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(run("show", name).output, encoding="utf-8")
    assert load_config(str(path)).config == load_config(name).config
