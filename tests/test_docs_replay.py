"""The commands of docs/replay.md and docs/fleet.md run and print what the pages say.

``python -m tests.test_docs_replay`` writes the outputs anew after an intended change.
"""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from dsv4kv.choices import ROUTERS, STRATEGIES
from dsv4kv.cli import app
from dsv4kv.engines.names import RULES
from dsv4kv.view.replay import BELOW

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [DOCS / "replay.md", DOCS / "fleet.md"]
TEXT, FLEET = (page.read_text("utf-8") for page in PAGES)
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def commands() -> list[str]:
    """Every line of the pages that is a command."""
    return re.findall(r"^(?:\$ )?(dsv4kv replay .*)$", TEXT + FLEET, re.MULTILINE)


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


SESSION = re.compile(r"^(```console\n\$ ([^\n]*)\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
CUT = "…"  # what is left out of the page


def tables_of(command: str) -> dict[str, str]:
    """The parts of what a command prints, by their titles."""
    output = CliRunner(env=TERMINAL).invoke(app, shlex.split(command)[1:]).output
    parts = re.sub(r" +$", "", output, flags=re.MULTILINE).split("\n\n")
    return {title_of(part): part for part in parts}


def title_of(part: str) -> str:
    return part.split("  ", maxsplit=1)[0]


@pytest.mark.parametrize(("command", "expected"), [s[1:] for s in SESSION.findall(TEXT + FLEET)])
def test_what_the_page_shows_is_printed(
    command: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = tables_of(command)
    for part in expected.strip(f"{CUT}\n").split("\n\n"):
        assert found[title_of(part)] == part


def test_the_page_explains_why_nothing_came_back() -> None:
    for words, _ in BELOW.values():
        assert f"| {words} |" in TEXT


def test_the_page_explains_every_rule() -> None:
    for name in RULES:
        family, _, setting = name.partition(":")
        assert f"`{family}" in TEXT
        assert not setting or f":{setting}`" in TEXT


def test_the_page_explains_every_router() -> None:
    for name in ROUTERS:
        assert f"`{name}`" in FLEET


def test_the_page_explains_every_strategy() -> None:
    for name in STRATEGIES:
        assert f"`{name.replace('TOKENS', '4096')}`" in TEXT


def refresh() -> None:
    """Write the tables of all sessions into the pages."""

    def renew(match: re.Match[str]) -> str:
        found = tables_of(match[2])
        shown = match[3].strip(f"{CUT}\n").split("\n\n")
        tables = "\n\n".join(found[title_of(part)] for part in shown)
        return f"{match[1]}{CUT}\n{tables}\n\n{CUT}\n```"

    for page in PAGES:
        with TemporaryDirectory() as folder, chdir(folder):
            text = SESSION.sub(renew, page.read_text("utf-8"))
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    refresh()
