"""A whole replay and its record."""

from pathlib import Path

import pytest

from dsv4kv.config.load import expand_axes, load_config, shipped_names
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import Dsv4kvError, TraceError
from dsv4kv.replay.run import Invocation, Server, run_replay, serve_alone
from dsv4kv.runs.replay import Reuse
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


def test_the_same_configuration_gives_the_same_replay() -> None:
    first, second = run().cases[0], run().cases[0]
    assert first.replay == second.replay
    assert first.latencies == second.latencies
    assert first.totals == second.totals


def test_every_seen_token_is_saved_or_lost_for_a_reason() -> None:
    for strategy in ("full", "zero", "ends", "periodic:256"):
        result = run(f"prefix.strategy={strategy}").cases[0].replay
        assert result
        reuse = result.reuse
        assert reuse.saved_tokens + sum(reuse.lost_tokens.values()) == reuse.seen_tokens
        assert reuse.computed_tokens == reuse.prompt_tokens - reuse.saved_tokens


def test_a_reuse_that_does_not_add_up_is_no_record() -> None:
    result = run().cases[0].replay
    assert result
    broken = result.reuse.model_dump() | {"saved_tokens": result.reuse.saved_tokens + 1}
    with pytest.raises(ValueError, match="were seen before"):
        Reuse(**broken)


def test_a_sweep_has_a_case_for_every_point() -> None:
    record = run(axes=("prefix.policy=lru,lfu", "prefix.strategy=full,zero"))
    assert [case.axis for case in record.cases] == [
        {"prefix.policy": policy, "prefix.strategy": strategy}
        for policy in ("lru", "lfu")
        for strategy in ("full", "zero")
    ]


def test_a_case_that_cannot_be_built_does_not_end_a_sweep() -> None:
    record = run(axes=("prefix.strategy=ends,nothing",))
    assert [case.status for case in record.cases] == ["complete", "failed"]
    assert record.status == "failed"
    assert "is not a strategy" in (record.cases[1].error or "")


def test_the_only_case_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(Dsv4kvError, match="is not a strategy"):
        run("prefix.strategy=nothing")


def test_a_pool_smaller_than_every_request_fails_with_a_remedy() -> None:
    (case,) = run("cache.num_blocks=1").cases
    assert case.status == "failed"
    assert "none of 48 requests fits (48 longer than all blocks together)" in (case.error or "")
    assert "cache.num_blocks" in (case.error or "")


def test_a_trace_that_is_left_out_whole_is_a_sentence() -> None:
    with pytest.raises(TraceError, match="no request is left after skipping 1000"):
        run("workload.skip=1000")


def test_a_synthetic_workload_is_replayed_too() -> None:
    record = run("workload.trace=null", "workload.synthetic.requests=5",
                 "workload.synthetic.input.high=2000", "cache.num_blocks=2000")  # fmt: skip
    assert record.trace_source is None
    assert record.cases[0].totals
    assert record.cases[0].totals.requests == 5


def test_the_series_keeps_no_more_moments_than_asked_for() -> None:
    result = run("measure.points=16").cases[0].replay
    assert result
    assert 4 < len(result.series.at_ns) <= 16
    assert result.series.at_ns == sorted(result.series.at_ns)


def test_every_constant_has_a_source() -> None:
    result = run().cases[0].replay
    assert result
    assert {constant.name for constant in result.constants} >= {
        "GPUs",
        "memory bandwidth of a GPU",
        "arithmetic of a GPU",
        "overhead of a step",
        "weights read by every step",
        "experts a token passes",
    }
    assert all(constant.source for constant in result.constants)


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
