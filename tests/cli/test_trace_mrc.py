"""``dsv4kv trace mrc`` tells a curve, strategies and rules, the same on every medium."""

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner, Result

from dsv4kv.cli import trace as command


@pytest.fixture(autouse=True)
def _plain_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(command.app, ["mrc", *arguments])
    if result.exit_code != exit_code and result.exception:
        raise result.exception
    assert result.exit_code == exit_code
    return result


def test_the_document_holds_every_row(snapshot: SnapshotAssertion) -> None:
    arguments = ("--strategy", "ends", "--rule", "vllm", "--json")
    result = run("builtin:chat", "--capacity", "64K", *arguments)
    assert json.loads(result.output) == snapshot


def test_the_headline_names_what_the_table_has() -> None:
    assert "lfu: 70.6%" in run("builtin:chat", "--policy", "lfu").output.splitlines()[0]


@pytest.fixture
def one_long(tmp_path: Path) -> str:
    """Twice ten prompts of ten blocks, and one of a thousand between."""
    ids = [[100 * k + block for block in range(10)] for k in range(1, 11)]
    ids = [*ids, list(range(5000, 6000)), *ids]
    rows = [
        {"timestamp": n, "input_length": 512 * len(each), "output_length": 1, "hash_ids": each}
        for n, each in enumerate(ids)
    ]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_prompt_longer_than_a_capacity_is_rejected_and_counted_and_the_rest_told(
    one_long: str,
) -> None:
    asked = ("--capacity", "100K,1M", "--rule", "vllm,sglang", "--policy", "lru")
    rows = json.loads(run(one_long, *asked, "--json").output)["rows"]
    small = [row for row in rows if row["capacity_blocks"] == 200]
    assert {row["rejected_requests"] for row in small} == {1}
    assert {row["rejected_requests"] for row in rows if row not in small} == {0}
    curve = small[0]
    assert curve["hit_tokens"] == 10 * 10 * 512  # all that returns, as if the long one never came
    assert curve["hit_share"] == pytest.approx(51_200 / (1200 * 512))
    assert "rejected" in run(one_long, *asked, "-v").output
