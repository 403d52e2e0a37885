"""A row in a registry is all that a new choice needs: everything that names choices knows it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsv4kv import choices
from dsv4kv.choices import Choice, choose, explained
from dsv4kv.config import bench, experiments, replay
from dsv4kv.core import policies
from dsv4kv.errors import ConfigError

REGISTRIES = {
    name: registry
    for module in (choices, policies, bench, replay, experiments)
    for name, registry in vars(module).items()
    if isinstance(registry, dict) and name.isupper()
    if all(isinstance(row, Choice) for row in registry.values())
}
ROWS = [(name, row) for name, registry in REGISTRIES.items() for row in registry]

COMMANDS = {
    "mrc help": "trace mrc --help-all",
    "replay help": "replay --help-all",
    "info help": "trace info --help",
    "schema": "config schema --json",
    "set": "config show --set cache.prefix.policy=random",
    "misspelt": "config show --set cache.prefix.policy=lri",
    "replay": "replay builtin:chat --policy random --quiet",
    "info": "trace info builtin:chat --format mine --json",
}
NEW = """
import json, sys
from dsv4kv.choices import TRACE_FORMATS, Choice
from dsv4kv.core.policies import POLICIES
POLICIES["random"] = Choice("any", "core.policies:FIFO")
TRACE_FORMATS["mine"] = Choice("my own", "traces.formats:NATIVE")
from typer.testing import CliRunner
from dsv4kv.cli import app
done = {
    name: CliRunner().invoke(app, command.split())
    for name, command in json.loads(sys.argv[1]).items()
}
print(json.dumps({name: [each.exit_code, each.output] for name, each in done.items()}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every command where three registries have a row more."""
    done = subprocess.run(
        [sys.executable, "-c", NEW, json.dumps(COMMANDS)],
        capture_output=True,
        cwd=tmp_path_factory.mktemp("new"),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        check=True,
    )
    return {name: (code, output) for name, (code, output) in json.loads(done.stdout).items()}


@pytest.mark.parametrize(("registry", "name"), ROWS)
def test_every_row_says_what_it_does_in_one_line_and_where_it_is_done(
    registry: str, name: str
) -> None:
    row = REGISTRIES[registry][name]
    assert row.explains == row.explains.strip(". \n")
    assert 0 < len(row.explains) < 100
    if row.where and row.where != "ops.cuda":  # needs a GPU
        assert row.load() is not None


def test_a_name_that_is_not_there_gets_a_sentence_with_the_nearest_and_all() -> None:
    rows: Mapping[str, Choice] = {"lru": Choice("a"), "arc": Choice("b")}
    with pytest.raises(ConfigError) as refusal:
        choose(rows, "lri", "a policy")
    assert str(refusal.value) == (
        "'lri' is not a policy (did you mean lru?): choose one of lru, arc."
    )
    assert explained(rows) == "lru (a), arc (b)"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("mrc help", 0, "random"),
        ("replay help", 0, "random"),
        ("schema", 0, "random (any)"),
        ("set", 0, "    policy: random\n"),
        ("misspelt", ConfigError.exit_code, "give one of lru, fifo, lfu, random"),
        ("replay", 0, ""),
        ("info help", 0, "mine"),
        ("info", 0, '"format": "mine"'),
    ],
)
def test_a_new_row_is_all_that_help_configurations_errors_and_runs_need(
    command: str, code: int, said: str, told: dict[str, tuple[int, str]]
) -> None:
    assert told[command][0] == code
    assert said in told[command][1]
