"""``dsv4kv budget --explain``."""

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.view.explain import explain
from tests.engines.logs.startup import SGLANG, VLLM_0_26, VLLM_0_33


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plain terminal of 100 columns, in the folder of the logs."""
    for name, value in (("COLUMNS", "100"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for name, lines in (("old", VLLM_0_26), ("new", VLLM_0_33), ("sglang", SGLANG)):
        Path(f"{name}.log").write_text("\n".join(lines), encoding="utf-8")


def told(capsys: pytest.CaptureFixture[str], *names: str, as_json: bool = False) -> str:
    explain([Path(f"{name}.log") for name in names], as_json)
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", ["old", "new", "sglang"])
def test_a_log_is_explained(
    name: str, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert told(capsys, name) == snapshot


def test_two_logs_give_a_waterfall(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert told(capsys, "old", "new") == snapshot


def test_ranks_that_differ_are_shown(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    lines = [f"(EngineCore_DP{rank} pid={rank}) {line}" for rank in (0, 1) for line in VLLM_0_33]
    lines[-1] = lines[-1].replace("63,859", "63,854")
    Path("ranks.log").write_text("\n".join(lines), encoding="utf-8")
    assert told(capsys, "ranks") == snapshot


def test_json_gives_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "old", as_json=True))
    assert document["printed_tokens"] == 1_009_661
    assert document["split"]["counted"] == 6_537
    assert document["statements"][0] == {"what": "engine", "value": "vllm", "how": "read"}


def test_json_of_two_gives_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "old", "new", as_json=True))
    gains = [step["gain_tokens"] for step in document["steps"]]
    assert document["end_tokens"] - document["start_tokens"] == sum(gains)
