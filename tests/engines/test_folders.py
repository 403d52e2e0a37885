"""An engine is its folder: everything that names engines knows it, and nothing else names one."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4kv.engines.names import ENGINES, FAMILIES, RULES

PACKAGE = Path(__file__).parents[2] / "dsv4kv"
NAMES = {*FAMILIES, *ENGINES, *RULES} - {"dsv4kv", "ideal"}
"""``dsv4kv`` is also the package's own name; ``ideal`` is no engine's rule."""
CLASSES = re.compile(r"(Vllm|Sglang|Trtllm|Own)Engine")
STARTS = {"startswith", "endswith", "removeprefix", "removesuffix"}
ELSEWHERE = ("engines", "ops/peers", "diagnose/conform/driven", "measure")
"""Engines' folders; packages whose kernels are peers; programs that drive the engines' code."""


def named(node: ast.AST) -> Iterator[str]:
    """Names of engines and rules among the constants of an expression."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            name = each.value.rstrip(":")
            if name in NAMES:
                yield name


def comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a program asks which engine something is: by a name, or by a class."""
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        match node:
            case ast.Compare():
                asked = [node]
            case ast.match_case():
                asked = [node.pattern]
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in STARTS:
                asked = list(node.args)
            case ast.ImportFrom(module=str(module)):
                parts = module.split(".")
                if parts[:2] == ["dsv4kv", "engines"] and parts[2:3] and parts[2] in FAMILIES:
                    yield node.lineno, module
            case ast.Name(id=name) if CLASSES.fullmatch(name):
                yield node.lineno, name
        for each in asked:
            for name in named(each):
                yield getattr(each, "lineno", 0), name


def test_nothing_outside_the_engines_asks_which_engine_it_has() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).as_posix()
        if not room.startswith(ELSEWHERE):
            found += [(room, *each) for each in comparisons(ast.parse(path.read_text("utf-8")))]
    assert found == []


def test_a_version_is_named_in_the_rows_of_its_engine_alone() -> None:
    """Else a row added for a newer one would be treated as an older."""
    for path in sorted((PACKAGE / "engines").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if path.name != "__init__.py" and isinstance(node, ast.Constant):
                assert node.value not in ENGINES or ":" not in node.value, path


FOLDER = {
    "__init__.py": """
from dataclasses import dataclass
from dsv4kv.engines.rule import Family, Launch, Policy, Variant

@dataclass(frozen=True)
class Release:
    newest: str
    oldest: str
    block: int = 256

LAUNCH = Launch((("lmdeploy", "serve"),), program="lmdeploy serve", arguments="{model}")
KINDS = ("v4", "v41", "flat")
RULES = {
    "lmdeploy": Variant(
        "blocks of 128", "lmdeploy:0.9", "--lmdeploys-own", default_for=KINDS,
        policy=Policy("hashed"), block_tokens=128,
    ),
}
VERSIONS = (Release("0.8", "0.7", 128), Release("0.9", "0.9"))
FAMILY = Family("lmdeploy", "LMDeploy", "sizes:LmdeployEngine", VERSIONS, RULES, launch=LAUNCH)
""",
    "sizes.py": """
from dsv4kv.engines.lmdeploy import FAMILY
from dsv4kv.engines.dsv4kv.sizes import OwnEngine

class LmdeployEngine(OwnEngine):
    family = FAMILY
    own = False

    def __init__(self, release):
        super().__init__()
        self.name, self.block_tokens = f"lmdeploy:{release.newest}", release.block
""",
}
COMMANDS = {
    "budget": "budget --engine lmdeploy:0.7 --gpus 8 --json",
    "command": "budget --command 'lmdeploy serve deepseek-ai/DeepSeek-V4-Flash' --hbm 500GiB",
    "budget help": "budget --help",
    "replay": "replay builtin:chat --rule lmdeploy --quiet",
    "replay help": "replay --help",
    "server": "replay builtin:chat --set server.engine=lmdeploy --gpu h200 --gpus 8 --quiet",
    "mrc": "trace mrc builtin:chat --rule lmdeploy --capacity 1M",
    "mrc help": "trace mrc --help",
}
RUN = """
import json, shlex, sys
from dsv4kv import engines
engines.__path__.append(sys.argv[1])
from typer.testing import CliRunner
from dsv4kv.cli import app
done = {
    name: CliRunner().invoke(app, shlex.split(command))
    for name, command in json.loads(sys.argv[2]).items()
}
print(json.dumps({name: [each.exit_code, each.output] for name, each in done.items()}))
"""

Answers = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Exit code and output of every command where there is one more folder of an engine."""
    folder = tmp_path_factory.mktemp("engines") / "lmdeploy"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN, folder.parent, json.dumps(COMMANDS)],
        capture_output=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        check=True,
    )
    return {name: (code, text) for name, (code, text) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_engine_is_added_by_its_folder_alone(command: str, answers: Answers) -> None:
    code, text = answers[command]
    assert code == 0, text
    assert command in ("server", "replay") or "lmdeploy" in text
    assert command != "budget" or json.loads(text)["engine"]["name"] == "lmdeploy:0.8"
