"""``dsv4kv budget --explain``: the document, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from tests.engines.logs.startup import SGLANG, VLLM_0_26, VLLM_0_33


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the folder of the logs."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("old", VLLM_0_26), ("new", VLLM_0_33), ("sglang", SGLANG)):
        Path(f"{name}.log").write_text("\n".join(lines), encoding="utf-8")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["budget", "--explain", *words])


def document(*names: str) -> Any:
    return json.loads(run(*(f"{name}.log" for name in names), "--json").stdout)


def test_json_gives_every_number() -> None:
    found = document("old")
    assert found["printed_tokens"] == 1_009_661
    assert found["statements"][0] == {"what": "engine", "value": "vllm", "how": "read"}


def test_json_of_two_gives_the_steps() -> None:
    found = document("old", "new")
    gains = [step["gain_tokens"] for step in found["steps"]]
    assert found["end_tokens"] - found["start_tokens"] == sum(gains)
