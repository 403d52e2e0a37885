"""The commands of docs/replay.md run and print what the page says."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.choices import STRATEGIES
from dsv4kv.cli import app
from dsv4kv.engines.rules import RULES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "replay.md"
TEXT = PAGE.read_text("utf-8")
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def commands() -> list[str]:
    """Every line of the page that is a command."""
    return re.findall(r"^(?:\$ )?(dsv4kv replay .*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)[1:]
    arguments[1] = "builtin:chat"  # for traces that are not shipped
    result = CliRunner(env=TERMINAL).invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Prompt tokens" in result.stdout or "Replays" in result.stdout


def test_the_page_explains_every_rule() -> None:
    for name in RULES:
        family, _, setting = name.partition(":")
        assert f"`{family}" in TEXT
        assert not setting or f":{setting}`" in TEXT


def test_the_page_explains_every_strategy() -> None:
    for name in STRATEGIES:
        assert f"`{name.replace('TOKENS', '4096')}`" in TEXT
