"""``dsv4kv conform``, over a manager in plain Python."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.diagnose.conform import check
from tests.diagnose.conform.toy import Toy


def conform(monkeypatch: pytest.MonkeyPatch, *options: str, fault: str = "") -> Result:
    @contextmanager
    def toy(*_: Any) -> Iterator[Toy]:
        yield Toy(fault)

    monkeypatch.setattr(check, "drive", toy)
    return CliRunner().invoke(app, ["conform", "vllm", "--operations", "1500", *options])


def test_a_sound_manager_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = conform(monkeypatch, "--pytest", str(tmp_path / "case.py"))
    assert result.exit_code == 0
    assert "PASS" in result.output
    assert not [*tmp_path.iterdir()]


def test_a_failure_is_told_with_its_shortest_sequence_and_a_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = tmp_path / "case.py"
    result = conform(monkeypatch, "--pytest", str(case), fault="leak")
    assert result.exit_code == 1
    assert "FAIL: blocks" in result.output
    assert "1 of 199 blocks are lost" in result.output
    assert "preempt" in result.output
    assert "def test_blocks" in case.read_text()


def test_a_file_that_cannot_be_written_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    result = conform(monkeypatch, "--pytest", "/nowhere/case.py", fault="leak")
    assert result.exit_code == 2
    assert "FAIL: blocks" in result.stdout
    assert "--pytest /nowhere/case.py: cannot be written" in result.stderr


def test_json_has_the_verdict_and_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = conform(monkeypatch, "--json", fault="misses")
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert not document["ok"]
    (failure,) = document["failures"]
    assert failure["kind"] == "hits"
    assert failure["sequence"]["operations"][-1][0] == "serve"


def test_a_failure_that_does_not_repeat_is_told_and_no_test_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = tmp_path / "case.py"
    words = ["--operations", "4000", "--pytest", str(case)]
    result = conform(monkeypatch, *words, fault="wears")
    assert result.exit_code == 1
    assert "blocks: 1 of 199 blocks are lost" in result.stdout
    assert "did not repeat when the same sequence ran again" in result.stdout
    assert f"--pytest {case}: not written, as no failure repeated" in result.stderr
    assert not case.exists()


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
