"""Every command of docs/prefix.md runs and prints what the page says.

``python -m tests.cli.test_trace_docs`` writes the outputs anew after an intended change.
"""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.names import RULES
from dsv4kv.mrc.strategies import parse_strategy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prefix.md"
SESSION = re.compile(r"^```console\n(\$ [^\n]*\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
TERMINAL = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
SESSIONS = SESSION.findall(PAGE.read_text("utf-8"))


def output_of(command: str) -> str:
    """What a command prints, trailing blanks left out."""
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "dsv4kv"
    output = CliRunner(env=TERMINAL).invoke(app, arguments).output
    return re.sub(r" +$", "", output, flags=re.MULTILINE).strip("\n") + "\n"


@pytest.mark.parametrize(("command", "expected"), SESSIONS)
def test_a_command_prints_what_the_page_says(command: str, expected: str) -> None:
    assert output_of(command) == expected


def test_the_page_names_every_rule_and_real_strategies() -> None:
    text = PAGE.read_text("utf-8")
    for rule in RULES:
        family, _, kind = rule.partition(":")
        assert f"`{family}" in text
        assert not kind or f":{kind}`" in text
    for name in re.findall(r"^\| `([a-z:+0-9]+)` \| (?:every|a check|nothing|also)", text, re.M):
        assert parse_strategy(name, window_tokens=128, layers=43).name == name


def refresh() -> None:
    """Write the outputs of all sessions into the page."""

    def renew(match: re.Match[str]) -> str:
        return f"```console\n{match[1]}{output_of(match[1])}```"

    PAGE.write_text(SESSION.sub(renew, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    refresh()
