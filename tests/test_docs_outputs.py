"""Every command of the guides runs, and prints what they show.

``python -m tests.test_docs_outputs`` writes the outputs anew after an intended change.
"""

import re
import shlex
from contextlib import chdir
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.choices import STRATEGIES
from dsv4kv.cli import app
from dsv4kv.config.replay import ROUTERS
from dsv4kv.engines.names import FAMILIES, RULES
from dsv4kv.replay.mrc import parse_strategy
from dsv4kv.view.replay import BELOW

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = (
    "budget",
    "budget-engines",
    "explain",
    "flags",
    "fleet",
    "lint",
    "prefix",
    "replay",
    "replay-engines",
    "replay-tiers",
)
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in NAMES}
BLOCK = re.compile(r"^```(\S*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
CUT = re.compile("^…\n", re.MULTILINE)  # stands for what a page omits


def blocks() -> list[tuple[str, str, str]]:
    """Of all pages: the language, the name and the text."""
    return [block for text in PAGES.values() for block in BLOCK.findall(text)]


SESSIONS = [text for kind, _, text in blocks() if kind == "console"]
RUNS = re.findall(r"^dsv4kv replay .*$", "\n".join(PAGES.values()), re.MULTILINE)


def write_files(folder: Path) -> None:
    """Write the files that pages show, under their names."""
    for kind, name, text in blocks():
        if kind == "text" and name:
            (folder / name).write_text(text, "utf-8")


def run(command: str) -> Result:
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "dsv4kv"
    return CliRunner(env=TERMINAL).invoke(app, arguments)


def output_of(command: str) -> str:
    """What a command prints, without blanks at ends of lines and the name of a record."""
    output = re.sub(r"^record: .*\n", "", run(command).output, flags=re.MULTILINE)
    return re.sub(r" +$", "", output, flags=re.MULTILINE).strip("\n") + "\n"


def test_the_readme_has_160_lines_and_a_page_200() -> None:
    most = {DOCS.parent / "README.md": 160} | dict.fromkeys(DOCS.glob("*.md"), 200)
    assert [page.name for page in most if page.read_text("utf-8").count("\n") > most[page]] == []


@pytest.mark.usefixtures("fresh_faults")
@pytest.mark.parametrize("session", SESSIONS, ids=lambda text: text.splitlines()[0])
def test_a_command_prints_what_the_page_shows(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    command, shown = session.split("\n", 1)
    output = output_of(command)
    if not CUT.search(shown):
        assert output == shown
    place = 0
    for part in CUT.split(shown):
        assert part.strip("\n") in output[place:]
        place = output.index(part.strip("\n"), place)


@pytest.mark.parametrize("command", RUNS)
def test_a_replay_of_the_pages_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(command.replace("conversation_trace.jsonl", "builtin:chat"))
    assert (result.exit_code, result.stderr) == (0, "")


def test_every_flag_of_an_engine_is_on_its_page_with_what_it_decides() -> None:
    for flag in (flag for family in FAMILIES for flag in FAMILIES[family].flags):
        assert f"`{flag.name}`" in PAGES["flags"]
        assert not flag.means or f"| `{flag.name}` | {flag.effect} |" in PAGES["flags"]
    for engine in ("vllm", "sglang", "trtllm"):
        assert any(f"--engine {engine}" in text.splitlines()[0] for text in SESSIONS)


def test_the_pages_explain_every_rule_strategy_router_and_loss() -> None:
    for name in RULES:
        family, _, setting = name.partition(":")
        for page in (PAGES["replay-engines"], PAGES["prefix"]):
            assert f"`{family}" in page
            assert not setting or f":{setting}`" in page
    for name in STRATEGIES:
        assert f"`{name.replace('TOKENS', '4096')}`" in PAGES["replay"]
    for name in ROUTERS:
        assert f"`{name}`" in PAGES["fleet"]
    for words, _ in BELOW.values():
        assert f"| {words} |" in PAGES["replay-tiers"]
    kept = r"^\| `([a-z:+0-9]+)` \| (?:every|a check|nothing|also)"
    for name in re.findall(kept, PAGES["prefix"], re.MULTILINE):
        assert parse_strategy(name, window_tokens=128, layers=43).name == name


def renewed(session: str, output: str = "") -> str:
    """A session with today's output; what is cut is cut again, at the same titles."""
    command, shown = session.split("\n", 1)
    output = output or output_of(command)
    if not CUT.search(shown):
        return f"{command}\n{output}"

    def title(text: str) -> str:
        return text.split("\n", maxsplit=1)[0].split("  ", maxsplit=1)[0]

    left = [each.strip("\n") for each in output.split("\n\n")]

    def today(block: str) -> str:
        """The next text of this title; of several the one that is most like the block."""
        # a section's heading may be above its first table
        texts = [
            (number, text)
            for number, whole in enumerate(left)
            for text in (whole, whole.partition("\n")[2])
        ]
        headline = [(0, left[0])] if shown.startswith(block) else []
        same = [each for each in texts if title(each[1]) == title(block)] or headline
        number, text = max(same, key=lambda each: SequenceMatcher(None, block, each[1]).ratio())
        del left[: number + 1]
        return text

    parts = []
    for part in CUT.split(shown):
        blocks = [each for each in part.strip("\n").split("\n\n") if each]
        parts.append("\n\n".join(map(today, blocks)) + "\n" * bool(blocks))
    return "\n".join([command, "…\n".join(parts)])


def test_python_of_the_guides_imports_names_that_exist() -> None:
    blocks = [
        block
        for page in sorted(DOCS.glob("*.md"))
        for language, _, block in BLOCK.findall(page.read_text("utf-8"))
        if language == "python"
    ]
    lines = re.findall(r"^from (dsv4kv\S*) import (.+)$", "\n".join(blocks), re.MULTILINE)
    assert len(lines) > 5
    for module, names in lines:
        assert all(hasattr(import_module(module), name) for name in names.split(", "))


if __name__ == "__main__":
    with TemporaryDirectory() as place, chdir(place):
        write_files(Path(place))
        for page, text in PAGES.items():
            again = BLOCK.sub(
                lambda m: f"```console\n{renewed(m[3])}```" if m[1] == "console" else m[0], text
            )
            (DOCS / f"{page}.md").write_text(again, "utf-8")
