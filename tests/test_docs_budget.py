"""Every command of docs/budget.md and docs/lint.md runs and prints what the page says.

``python -m tests.test_docs_budget`` writes the outputs anew after an intended change.
"""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.engines.flags import flags_of
from dsv4kv.engines.names import FAMILIES

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "budget.md"
PAGES = [PAGE, DOCS / "lint.md"]
BLOCK = re.compile(r"^```(\S*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
CUT = "…\n"  # what follows is left out of the page


def sessions() -> list[str]:
    """Every console block: a line ``$ command``, then its output."""
    return [text for kind, _, text in blocks() if kind == "console"]


def blocks() -> list[tuple[str, str, str]]:
    """Of all pages: the language, the name and the text."""
    return [block for page in PAGES for block in BLOCK.findall(page.read_text("utf-8"))]


def write_files(folder: Path) -> None:
    """Write the files that the page shows, under their names."""
    for kind, name, text in blocks():
        if kind == "text" and name:
            (folder / name).write_text(text, "utf-8")


def output_of(session: str) -> str:
    """What the command of a session prints, trailing blanks left out."""
    command = session.splitlines()[0].removeprefix("$ ")
    program, *arguments = shlex.split(command)
    assert program == "dsv4kv"
    output = CliRunner(env=TERMINAL).invoke(app, arguments).output
    return re.sub(r" +$", "", output, flags=re.MULTILINE).strip("\n") + "\n"


@pytest.mark.usefixtures("fresh_faults")
@pytest.mark.parametrize("session", sessions(), ids=lambda text: text.splitlines()[0])
def test_a_command_prints_what_the_page_says(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = session.split("\n", 1)[1]
    found = output_of(session)
    if expected.endswith(CUT):
        assert found.startswith(expected.removesuffix(CUT))
    else:
        assert found == expected


def test_every_flag_of_an_engine_is_on_the_page_with_what_it_decides() -> None:
    page = PAGE.read_text("utf-8")
    for flag in (flag for family in FAMILIES for flag in flags_of(family)):
        assert f"`{flag.name}`" in page
        assert not flag.means or f"| `{flag.name}` | {flag.effect} |" in page


def test_every_engine_has_its_example() -> None:
    commands = " ".join(text.splitlines()[0] for text in sessions())
    for engine in ("vllm", "sglang", "trtllm"):
        assert f"--engine {engine}" in commands


def refresh() -> None:
    """Write the outputs of all sessions into the page; a cut output is cut at the same line."""

    def renew(match: re.Match[str]) -> str:
        kind, _, session = match.groups()
        if kind != "console":
            return match[0]
        lines = output_of(session).splitlines(keepends=True)
        if session.endswith(CUT):
            lines = [*lines[: len(session.splitlines()) - 2], CUT]
        return f"```console\n{session.splitlines()[0]}\n{''.join(lines)}```"

    with TemporaryDirectory() as folder, chdir(folder):
        write_files(Path(folder))
        for page in PAGES:
            page.write_text(BLOCK.sub(renew, page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    refresh()
