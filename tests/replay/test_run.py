"""A whole replay and its record, and traces that are refused before they are replayed."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.config.load import expand_axes, load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import TraceError
from dsv4kv.replay.build import check_ids, read_requests
from dsv4kv.replay.run import Server, run_replay, serve_alone
from dsv4kv.runs.points import Invocation
from dsv4kv.runs.schema import RunRecord
from tests.replay.scenes import SMALL, request, small_config

SETTINGS = [f"{key}={value}" for key, value in SMALL.items()] + ["cache.num_blocks=400"]


def run(*settings: str, axes: tuple[str, ...] = ()) -> RunRecord:
    overrides = [*SETTINGS, *settings]
    loaded = load_config("default", overrides, ReplayConfig)
    points = expand_axes(loaded, overrides, axes)
    told: list[tuple[int, int]] = []
    invocation = Invocation(["dsv4kv"], loaded, points, overrides, axes)
    record = run_replay(invocation, lambda done, total: told.append((done, total)))
    assert not told or told[-1][0] <= told[-1][1]
    return record


def test_a_case_that_fails_says_why_and_does_not_end_a_sweep() -> None:
    record = run(axes=("prefix.strategy=ends,nothing",))
    assert [case.status for case in record.cases] == ["complete", "failed"]
    assert record.status == "failed"
    assert "is not a strategy" in (record.cases[1].error or "")
    (case,) = run("cache.num_blocks=1").cases
    assert "none of 48 requests fits (48 longer than all blocks together)" in (case.error or "")


def test_a_worker_that_sees_another_trace_says_so() -> None:
    loaded = load_config("default", SETTINGS, ReplayConfig)
    points = expand_axes(loaded, SETTINGS, ("prefix.policy=lru,lfu",))
    trace = loaded.config.workload.trace
    assert trace
    elsewhere = Server(points, serve_alone, {trace: "0" * 64})
    with pytest.raises(TraceError, match="is another trace here than where the sweep was begun"):
        elsewhere(1)  # no fault of the point, which so is not kept as failed
    with pytest.raises(TraceError, match="is another trace"):
        elsewhere(0)


def write(path: Path, *ids: list[int], times: Sequence[int] = range(0, 90, 10)) -> Path:
    """A Mooncake trace of prompts in whole blocks."""
    names = "timestamp", "input_length", "output_length", "hash_ids"
    rows = [(at, 512 * len(each), 1, each) for each, at in zip(ids, times, strict=False)]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
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
