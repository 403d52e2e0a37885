"""Every command of docs/profiling.md runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.profile.table import shipped_rules
from dsv4kv.runs.profile import CATEGORIES
from dsv4kv.view.profile import ON_CPU, ON_GPU
from tests.bench.settings import TINY
from tests.cli.test_profile import in_empty_folder, ncu, nsys
from tests.profile.exports import two_replays
from tests.profile.tools import Tool
from tests.profile.traces import gpu_events, save

__all__ = ["in_empty_folder", "ncu", "nsys"]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "profiling.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
COMMANDS = [re.split(r"[#>]", line)[0].strip() for line in LINES]
TINY_OPTIONS = [word for setting in TINY for word in ("--set", setting)]
CONFIGURATION = """\
name: mine
model: {preset: v4-flash, layers: [0, 2, 3]}
cache: {max_context_tokens: 1024}
workload: {trace: null}
"""


def write_files() -> None:
    """The files that the page's commands read."""
    Path("mine.yaml").write_text(CONFIGURATION)
    for name in ("server.nsys-rep", "server.ncu-rep"):
        Path(name).touch()
    two_replays().save(Path("server.sqlite"))
    save(Path("server.json.gz"), gpu_events())
    for name in ("before.json", "after.json"):
        save(Path(name), gpu_events())


def test_the_page_has_commands_for_every_way() -> None:
    options = {word for command in COMMANDS for word in command.split() if word.startswith("--")}
    assert {"--nsys", "--ncu", "--torch", "--diff"} <= options
    assert all(command.startswith("dsv4kv profile") for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, nsys: Tool, ncu: Tool) -> None:
    write_files()
    _, *arguments = shlex.split(command)
    runs = not {"--diff", "--print-command"} & set(arguments) and "server." not in command
    given = arguments if "mine.yaml" in arguments or len(arguments) > 1 else ["profile", "smoke"]
    done = CliRunner().invoke(app, [*given, *(TINY_OPTIONS if runs else [])])
    assert done.exit_code == 0, done.output
    assert done.stdout


def test_the_page_names_all_classes_engines_and_rows() -> None:
    for name in (*CATEGORIES, *(rule.engine for rule in shipped_rules()), *ON_CPU):
        assert name in PAGE
    for row in ("GPU busy", "GPU idle in between", "host, whole step"):
        assert row in ON_GPU
        assert f"*{row}*" in PAGE
