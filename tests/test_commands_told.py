"""Every command that the README or a guide tells is understood: its name, options and values."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from dsv4kv.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ |- run: )?(?:sudo )?(dsv4kv (?!prints:).*)$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Commands in the blocks of a page, each on one line."""
    text = "\n".join(BLOCK.findall(page.read_text("utf-8")))
    return COMMAND.findall(re.sub(r"\\\n\s*", "", text))


TOLD = [(page.name, command) for page in PAGES for command in dict.fromkeys(commands(page))]


@pytest.mark.parametrize(("page", "command"), TOLD)
def test_a_command_is_understood(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "main", command), comments=True)
    ends = [words.index(sign) for sign in ("|", ">", "&&") if sign in words]
    arguments = words[1 : min(ends, default=None)]
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        name, *arguments = arguments
        found = found.commands[name]
    found.make_context(name, arguments)


def test_the_readme_tells_every_command() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {command.split()[1] for page, command in TOLD if page == "README.md"} == set(known)
