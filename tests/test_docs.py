"""The commands of the guides run and print what the pages show.

``python -m tests.test_docs`` writes the outputs anew after an intended change. ``…`` stands for
what a page leaves out: at the end of a session, or around the tables that it shows.
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
from dsv4kv.mrc.strategies import parse_strategy
from dsv4kv.sizing.flags import FLAGS
from dsv4kv.view.replay import BELOW

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = {"budget": 100, "lint": 100, "replay": 100, "fleet": 100, "prefix": 110}
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in COLUMNS}
SESSION = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```text (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CUT = "…\n"
SESSIONS = [(page, *found) for page, text in PAGES.items() for found in SESSION.findall(text)]
REPLAYS = re.findall(
    r"^(?:\$ )?(dsv4kv replay .*)$", PAGES["replay"] + PAGES["fleet"], re.MULTILINE
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds the files that pages show, under their names."""
    monkeypatch.chdir(tmp_path)
    write_files()


def write_files() -> None:
    for name, text in FILE.findall("".join(PAGES.values())):
        Path(name).write_text(text, "utf-8")


def output_of(page: str, command: str) -> str:
    """What a command prints, trailing blanks left out."""
    program, *arguments = shlex.split(command)
    assert program == "dsv4kv"
    terminal = {"COLUMNS": str(COLUMNS[page]), "NO_COLOR": "1", "TERM": "dumb"}
    output = CliRunner(env=terminal).invoke(app, arguments).output
    return re.sub(r" +$", "", output, flags=re.MULTILINE).strip("\n") + "\n"


def shown_of(output: str, shown: str) -> str:
    """The part of an output that a page shows now."""
    if shown.startswith(CUT):
        parts = {title_of(part): part for part in output.strip("\n").split("\n\n")}
        chosen = [parts[title_of(part)] for part in shown.strip(f"{CUT}\n").split("\n\n")]
        return CUT + "\n\n".join(chosen) + f"\n\n{CUT}"
    if shown.endswith(CUT):
        return "".join(output.splitlines(keepends=True)[: shown.count("\n") - 1]) + CUT
    return output


def title_of(part: str) -> str:
    return part.split("  ", maxsplit=1)[0]


@pytest.mark.usefixtures("fresh_faults", "folder")
@pytest.mark.parametrize(
    ("page", "command", "shown"), SESSIONS, ids=[command for _, command, _ in SESSIONS]
)
def test_a_command_prints_what_the_page_shows(page: str, command: str, shown: str) -> None:
    assert shown_of(output_of(page, command), shown) == shown


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", REPLAYS)
def test_a_replay_of_the_pages_runs(command: str) -> None:
    arguments = shlex.split(command)[1:]
    arguments[1] = "builtin:chat"  # for traces that are not shipped
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_pages_name_all_that_there_is() -> None:
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        assert f"`{flag.name}`" in PAGES["budget"]
        assert not flag.means or f"| `{flag.name}` | {flag.effect} |" in PAGES["budget"]
    commands = " ".join(command for _, command, _ in SESSIONS)
    assert all(f"--engine {engine}" in commands for engine in ("vllm", "sglang", "trtllm"))
    for page in ("replay", "prefix"):
        for family, _, setting in (name.partition(":") for name in RULES):
            assert f"`{family}" in PAGES[page]
            assert not setting or f":{setting}`" in PAGES[page]
    assert all(f"| {words} |" in PAGES["replay"] for words, _ in BELOW.values())
    assert all(f"`{name}`" in PAGES["fleet"] for name in ROUTERS)
    assert all(f"`{name.replace('TOKENS', '4096')}`" in PAGES["replay"] for name in STRATEGIES)
    rows = r"^\| `([a-z:+0-9]+)` \| (?:every|a check|nothing|also)"
    for name in re.findall(rows, PAGES["prefix"], re.MULTILINE):
        assert parse_strategy(name, window_tokens=128, layers=43).name == name


def main() -> None:
    """Write what the sessions of the pages print now."""
    for page, text in PAGES.items():

        def renew(match: re.Match[str], page: str = page) -> str:
            shown = shown_of(output_of(page, match[1]), match[2])
            return f"```console\n$ {match[1]}\n{shown}```"

        with TemporaryDirectory() as folder, chdir(folder):
            write_files()
            renewed = SESSION.sub(renew, text)
        (DOCS / f"{page}.md").write_text(renewed, "utf-8")


if __name__ == "__main__":
    main()
