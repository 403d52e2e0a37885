"""A whole replay and its record."""

from pathlib import Path

import pytest

from dsv4kv.config.load import expand_axes, load_config, shipped_names
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import TraceError
from dsv4kv.replay.run import Invocation, Server, run_replay, serve_alone
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import load_record, save_record
from tests.replay.scenes import SMALL

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


def test_the_shipped_configurations_are_whole() -> None:
    assert "default" in shipped_names(ReplayConfig)
    for name in shipped_names(ReplayConfig):
        cache = load_config(name, [], ReplayConfig).config.cache
        assert cache.memory_bytes or cache.num_blocks


def test_a_record_survives_being_saved(tmp_path: Path) -> None:
    record = run()
    assert load_record(save_record(record, tmp_path).path) == record
    assert record.status == "complete"
    assert record.trace_sha256


def test_a_case_that_cannot_be_built_does_not_end_a_sweep() -> None:
    record = run(axes=("prefix.strategy=ends,nothing",))
    assert [case.status for case in record.cases] == ["complete", "failed"]
    assert record.status == "failed"
    assert "is not a strategy" in (record.cases[1].error or "")


def test_a_pool_smaller_than_every_request_fails_with_a_remedy() -> None:
    (case,) = run("cache.num_blocks=1").cases
    assert case.status == "failed"
    assert "none of 48 requests fits (48 longer than all blocks together)" in (case.error or "")
    assert "cache.num_blocks" in (case.error or "")


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
