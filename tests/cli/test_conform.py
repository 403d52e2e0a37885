"""``dsv4kv conform``, over a manager in plain Python."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.conform import run
from tests.conform.toy import Toy


def conform(monkeypatch: pytest.MonkeyPatch, *options: str, fault: str = "") -> Result:
    @contextmanager
    def toy(*_: Any) -> Iterator[Toy]:
        yield Toy(fault)

    monkeypatch.setattr(run, "drive", toy)
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


def test_json_has_the_verdict_and_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = conform(monkeypatch, "--json", fault="misses")
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert not document["ok"]
    (failure,) = document["failures"]
    assert failure["kind"] == "hits"
    assert failure["sequence"]["operations"][-1][0] == "serve"


def test_an_engine_that_is_absent_ends_with_8() -> None:
    result = CliRunner().invoke(app, ["conform", "vllm", "--python", "/nowhere"])
    assert result.exit_code == 8
    assert "there is no Python at /nowhere" in result.output
