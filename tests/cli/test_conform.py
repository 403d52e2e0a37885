"""``dsv4kv conform``, over a manager in plain Python."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.diagnose import conform as check
from tests.diagnose.conform.toy import Toy


def conform(monkeypatch: pytest.MonkeyPatch, *options: str, fault: str = "") -> Result:
    @contextmanager
    def toy(*_: Any) -> Iterator[Toy]:
        yield Toy(fault)

    monkeypatch.setattr(check, "drive", toy)
    return CliRunner().invoke(app, ["conform", "vllm", "--operations", "1500", *options])


@pytest.mark.parametrize(
    ("fault", "sentences"),
    [
        ("", ["PASS"]),
        ("leak", ["FAIL: blocks", "1 of 199 blocks are lost", "preempt"]),
        ("wears", ["blocks: 1 of 199 blocks", "did not repeat when the same sequence ran again"]),
    ],
)
def test_a_verdict_is_told_with_its_sequences(
    fault: str, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = conform(monkeypatch, "--operations", "4000", fault=fault)
    assert result.exit_code == bool(fault)
    assert not [each for each in sentences if each not in result.output]


ENGINE = """#!{python}
import json
traits = {{"lookahead": True, "retention": True}}
print(json.dumps({{"version": "0.1", "traits": traits}}), flush=True)
"""


def engine_that_ends(folder: Path) -> str:
    """A Python that says it is there, and is gone with the first question."""
    program = folder / "python"
    program.write_text(ENGINE.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


def test_an_engine_that_dies_under_the_check_is_a_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["conform", "vllm", "--python", engine_that_ends(tmp_path)])
    assert result.exit_code == 8
    assert "its Python has ended" in result.output


@pytest.mark.parametrize(
    "said",
    [
        "a banner",
        '{"version": 1, "traits": {}}',
        "[" * 5000,
        '{"missing": 3}',
        "\\xff",
        '{"version": "", "traits": {}}\n{"broken": {}, "done": 0}',
        '{"version": "", "traits": {}}\n{"broken": {"blocks": ["x", "y"]}, "done": 200}',
        '{"version": "", "traits": {}}\n{"broken": {"beauty": ["x", 3]}, "done": 9000000}',
    ],
)
def test_a_python_that_says_something_else_is_a_sentence(said: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nprint({said!r})\n")
    python.chmod(0o755)
    ended = CliRunner().invoke(app, ["conform", "vllm", "--python", str(python)])
    assert ended.exit_code == 8
    assert "which no driver says" in " ".join(ended.stderr.split())
