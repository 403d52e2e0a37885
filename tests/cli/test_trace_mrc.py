"""``dsv4kv trace mrc`` tells a curve, strategies and rules, the same on every medium."""

import json
import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner, Result

from dsv4kv.cli import trace as command
from dsv4kv.traces import load_paths
from dsv4kv.traces.paths import find_reuse


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


def test_capacities_in_bytes_are_those_of_the_models_compressed_cache() -> None:
    result = run("builtin:chat", "--capacity", "100MiB", "--model", "v4-flash", "--json")
    point = json.loads(result.output)["rows"][0]
    # 3,514.25 B a token (arXiv:2606.19348 with fp8_ds_mla entries and mxfp4 keys)
    tokens = int(100 * 2**20 / 3514.25)
    assert point["capacity_tokens"] == tokens
    assert point["capacity_bytes"] == int(tokens * 3514.25)


def test_a_capacity_comes_back_as_it_was_asked_for() -> None:
    rows = json.loads(run("builtin:chat", "--capacity", "24600,30001", "--json").output)["rows"]
    assert [row["capacity_tokens"] for row in rows if row["name"] == "lru"] == [24600, 30001, None]
    assert [row["capacity_blocks"] for row in rows if row["name"] == "lru"] == [384, 468, None]


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


def test_the_curve_is_that_of_the_trace() -> None:
    document = json.loads(run("builtin:chat", "--capacity", "24K", "--json").output)
    reuse = find_reuse(load_paths("builtin:chat"), 64)
    assert document["rows"][0]["hit_tokens"] == reuse.found_tokens(24 * 1024 // 64).sum()


def test_a_capacity_that_no_machine_has_is_as_good_as_none() -> None:
    assert "With unlimited memory" in run("builtin:chat", "--capacity", "9" * 30).output


@pytest.mark.parametrize("model", ["v4-flash", "v3.2"])
@pytest.mark.parametrize("capacity", ["4K", "32K"])
def test_the_best_rule_is_the_models_and_below_the_bound(capacity: str, model: str) -> None:
    asked = ("--capacity", capacity, "--rule", "all", "--model", model)
    printed = " ".join(run("builtin:chat", *asked).output.split())
    found = re.search(
        rf", the best rule for {model} is (\S+): ([\d.]+)% of prompt tokens hit "
        r"\(with unlimited memory at most ([\d.]+)%\)",
        printed,
    )
    assert found
    assert float(found[2]) <= float(found[3])
    assert found[1] not in ("ideal", *(["vllm", "sglang"] if model == "v4-flash" else []))
