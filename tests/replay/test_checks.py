"""Traces that contradict themselves are refused before they are replayed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import TraceError
from dsv4kv.replay.build import check_ids, read_requests
from tests.replay.scenes import request, small_config


def write(path: Path, *ids: list[int], times: list[int] | None = None) -> Path:
    """A Mooncake trace of prompts in whole blocks."""
    lines = [
        {
            "timestamp": times[number] if times else 10 * number,
            "input_length": 512 * len(each),
            "output_length": 1,
            "hash_ids": each,
        }
        for number, each in enumerate(ids)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def config(path: Path, *settings: str) -> ReplayConfig:
    return load_config("default", [f"workload.trace={path}", *settings], ReplayConfig).config


def test_lines_are_those_of_the_file_where_requests_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [9], [1, 2], [5, 6], [3, 2])
    with pytest.raises(TraceError, match=r"t\.jsonl:4: block id 2 has another .* at .*:2:"):
        read_requests(config(path, "workload.skip=1"))


def test_requests_without_a_file_are_told_by_number() -> None:
    requests = [request([1, 2]), request([3, 2])]
    workload = small_config(workload__trace=None).workload
    with pytest.raises(TraceError, match="request 2 of the synthetic workload: block id 2"):
        check_ids(requests, workload)


@pytest.mark.parametrize(
    ("ids", "times", "sentence"),
    [
        ([[1, 2], [3, 2]], [0, 10], "block id 2 has another history"),
        ([[1, 2], [3, 4]], [10, 0], "the clock runs backwards"),
    ],
)
def test_a_defective_trace_ends_with_its_exit_code(
    tmp_path: Path, ids: list[list[int]], times: list[int], sentence: str
) -> None:
    path = write(tmp_path / "t.jsonl", *ids, times=times)
    result = CliRunner().invoke(app, ["replay", str(path), "--out", str(tmp_path)])
    assert result.exit_code == TraceError.exit_code == 4
    assert sentence in " ".join(result.output.split())
