"""Every command that README, guides and workflows show is understood: name, options, values."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dsv4kv.cli import COMMANDS, Program, _take, app, load_command
from tests.words import find

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ |- run: )?(?:sudo )?(dsv4kv (?!prints:).*)$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Commands in the blocks of a page, each on one line, and in the table of questions."""
    whole = page.read_text("utf-8")
    text = whole if page.suffix == ".yml" else "\n".join(BLOCK.findall(whole))
    questions = re.findall(r"^\| .*\? \| `(.*?)` \|", whole, re.MULTILINE)
    shown = COMMAND.findall(re.sub(r"\\\n\s*", "", text))
    return [*shown, *(f"dsv4kv {command}" for command in questions)]


def parts_of(command: Any) -> dict[str, Any]:
    """Commands of a group by name, imported."""
    if isinstance(command, Program):
        return {name: load_command.__wrapped__(name) for name in COMMANDS}  # others are cached
    return dict(getattr(command, "commands", {}))


def all_helps(command: Any, name: str = "dsv4kv") -> dict[str, str]:
    """What stands below the help of every command, by its name."""
    parts = parts_of(command).items()
    below = [all_helps(part, f"{name} {part_name}") for part_name, part in parts]
    return {name: command.epilog or ""} | {
        key: text for each in below for key, text in each.items()
    }


def examples(epilog: str) -> list[str]:
    """Commands below a help, without what is said of them."""
    section = epilog.partition("[bold]Examples[/bold]")[2].partition("[bold]")[0]
    lines = [line for line in section.splitlines() if line and not line.startswith(("--", "#"))]
    return [re.split(r" {2,}", line)[0] for line in lines]


HELPS = all_helps(typer.main.get_command(app))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHOWN = [
    (page.name, command)
    for page in (*PAGES, *WORKFLOWS)
    for command in dict.fromkeys(commands(page))
]
SHOWN += [
    (f"{name} --help", command) for name, text in HELPS.items() for command in examples(text)
]


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_a_command_is_understood(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "main", command), comments=True)
    ends = [words.index(sign) for sign in ("|", ">", ">>", "&&") if sign in words]
    arguments = words[1 : min(ends, default=None)]
    assert not _take("--debug", arguments)  # which is for reports
    program: Any = typer.main.get_command(app)
    name, _, arguments = program.resolve_command(None, arguments)
    found: Any = load_command.__wrapped__(name)
    while parts := parts_of(found):
        name, *arguments = arguments
        found = parts[name]
    found.make_context(name, arguments)


def test_pages_are_free_of_phrases_that_are_hard_to_read() -> None:
    assert list(find(PAGES)) == []


def test_the_site_leads_to_every_guide_and_to_nothing_else() -> None:
    entries = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    named = sorted(page for entry in entries for page in entry.values())
    docs = ROOT / "docs"
    assert named == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def test_the_readme_tells_every_command() -> None:
    told = [f"{command} " for page, command in SHOWN if page == "README.md"]
    names = {n for n in COMMANDS if any(each.startswith(f"dsv4kv {n} ") for each in told)}
    assert names == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_program_has_the_first_paragraph_of_a_command_s(name: str) -> None:
    assert load_command(name).help.partition("\n\n")[0] == COMMANDS[name]


@pytest.mark.parametrize("name", HELPS)
def test_every_help_has_examples_of_its_command(name: str) -> None:
    told = examples(HELPS[name])
    assert told
    assert all(f"{command} ".startswith(f"{name} ") for command in told)
