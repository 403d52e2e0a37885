"""A fleet in the record."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.config.load import Point, expand_axes, load_config
from dsv4kv.config.replay import MOST_REPLICAS, FleetSection, ReplayConfig, unused_setting
from dsv4kv.replay.build import read_requests
from dsv4kv.replay.fleet.case import add_series, repeated_bytes, serve_point, shared_bytes
from dsv4kv.replay.run import run_replay
from dsv4kv.runs.parts import ReplayResult, ReplaySeries
from dsv4kv.runs.points import Invocation
from dsv4kv.runs.schema import Case, RunRecord
from tests.replay.scenes import SMALL, random_requests, request, run_fleet, small_config

SETTINGS = SMALL | {"workload.trace": "builtin:chat", "workload.speed": 40}


def run(axes: list[str] | None = None, **chosen: Any) -> RunRecord:
    """The record of the small trace."""
    chosen_settings = SETTINGS | {name.replace("__", "."): value for name, value in chosen.items()}
    overrides = [f"{name}={value}" for name, value in chosen_settings.items()]
    loaded = load_config(None, overrides, ReplayConfig)
    points = expand_axes(loaded, overrides, axes or [])
    invocation = Invocation(["dsv4kv"], loaded, points, overrides, axes or [])
    return run_replay(invocation, lambda done, total: None, serve_point)


def result(case: Case) -> ReplayResult:
    assert case.replay is not None
    return case.replay


def test_a_fleet_that_is_interrupted_is_recorded_as_far_as_it_came() -> None:
    def stop(done: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    config = small_config(workload__trace="builtin:chat", workload__speed=40, fleet__replicas=2)
    case = serve_point(Point({}, config), read_requests(config), stop)
    assert (case.status, case.error) == ("incomplete", None)
    assert case.totals is not None
    assert 0 < case.totals.requests < 48
    assert Case.model_validate_json(case.model_dump_json()) == case


def test_a_fleet_that_no_request_fits_has_failed() -> None:
    (case,) = run(fleet__replicas=2, cache__num_blocks=1).cases
    assert case.status == "failed"
    assert "none of 48 requests fits any replica" in str(case.error)


def test_series_of_replicas_add_up_to_what_all_held() -> None:
    def series(at: list[int], values: list[int]) -> ReplaySeries:
        names = ReplaySeries.model_fields.keys() - {"at_ns"}
        return ReplaySeries(at_ns=at, **dict.fromkeys(names, values))

    both = add_series([series([0, 10], [1, 2]), series([5, 10, 20], [10, 20, 30])], 16)
    assert (both.at_ns, both.running) == ([0, 5, 10, 20], [1, 11, 22, 32])
    assert add_series([series([2**64], [1])], 16).at_ns == [2**64]  # more than 292 years
    few = add_series([series(list(range(99)), list(range(99)))], 16)
    assert len(few.at_ns) == 16
    assert np.all(np.diff(few.at_ns) > 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"router": "dynamo"}, "fleet.router is given and there is no fleet"),
        ({"slo": {"ttft_ms": 5}}, "fleet.slo is given and there is no fleet"),
        ({"replicas": 2, "decode_router": "dynamo"}, "decode_router is given and no replica"),
        ({"replicas": 2, "shared_tiers": ["remote"]}, "shared_tiers has remote, and there is no"),
        ({"replicas": 2, "shared_tiers": ["host"]}, ""),
        ({"replicas": 2, "router": "dynamo", "sessions": "think"}, ""),
        ({}, ""),
    ],
)
def test_a_setting_without_effect_is_told_with_what_to_do(
    given: dict[str, Any], said: str
) -> None:
    found = unused_setting([FleetSection.model_validate(given)], {"host"})
    assert said in found
    assert bool(found) == bool(said)


def test_constants_of_decode_replicas_that_differ_are_named_by_the_first() -> None:
    split: dict[str, Any] = {"fleet__prefill__replicas": 1, "fleet__decode__replicas": 2}
    (case,) = run(**split, fleet__decode__settings='["cost.gpus=4"]').cases
    found = {each.name: each.value for each in result(case).constants}
    assert (found["GPUs"], found["decode 0: GPUs"]) == (2, 4)
    assert {name.partition(": ")[0] for name in found if ": " in name} == {"decode 0"}


def test_what_replicas_with_other_blocks_hold_twice_is_counted_by_the_trace() -> None:
    """Prompts in blocks of 128 tokens are computed, and decoded in blocks of 256."""
    config = small_config(
        fleet__prefill__replicas=1,
        fleet__decode__replicas=1,
        fleet__decode__settings='["cache.block_tokens=256"]',
    )
    outcome = run_fleet(config, [request(range(1, 6), at=float(at)) for at in range(2)])
    # five blocks of 128 tokens are two whole ones of 256
    assert repeated_bytes(outcome) == 2 * shared_bytes(outcome.replicas[1])


@pytest.mark.parametrize(
    "fleet", [{"replicas": 4097}, {"prefill": {"replicas": 4000}, "decode": {"replicas": 97}}]
)
def test_more_replicas_than_can_be_looked_at_are_refused(fleet: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"replicas are more than a fleet may have, 4,096"):
        FleetSection(**fleet)
    assert FleetSection(replicas=MOST_REPLICAS).exists


SIDES = (
    "cost.gpu=b200 cost.gpus=4",
    "cost.gpus=4 cost.tp=1 cost.dp=4",
    "cache.block_tokens=256",
    "prefix.rule=vllm-v4:semantic cache.num_blocks=500",
    "prefix.rule=sglang-v4:tail cache.num_blocks=500",
    "scheduler.max_requests=2",
)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    sides=st.tuples(st.sampled_from(SIDES), st.sampled_from(SIDES)),
    router=st.sampled_from(["round_robin", "dynamo", "cache_aware", "llm-d:precise"]),
)
def test_whatever_differs_adds_up(seed: int, sides: tuple[str, str], router: str) -> None:
    texts = [side.split() for side in sides]
    config = small_config(
        fleet__prefill__replicas=2,
        fleet__prefill__settings=texts[0],
        fleet__decode__replicas=1,
        fleet__decode__settings=texts[1],
        fleet__router=router,
    )
    requests = random_requests(seed, 30, 10)
    case = serve_point(Point({}, config), requests, lambda done: None)
    found, totals, fleet = result(case), case.totals, result(case).fleet
    assert case.status == "complete"
    assert totals is not None
    assert fleet is not None
    prefill = fleet.replicas[:2]
    assert sum(each.requests for each in prefill) == totals.requests + totals.rejected == 30
    assert sum(each.output_tokens for each in fleet.replicas) == totals.output_tokens
    assert sum(each.prompt_tokens for each in prefill) == fleet.prompt_tokens
    computed = sum(each.computed_tokens for each in prefill)
    assert computed == found.reuse.computed_tokens
    assert computed - found.reuse.again_tokens + fleet.saved_tokens == fleet.prompt_tokens
    assert fleet.saved_tokens <= fleet.ideal_saved_tokens
    assert fleet.pooled_saved_tokens <= fleet.ideal_saved_tokens
    assert fleet.repeated_bytes <= fleet.held_bytes
    assert fleet.gpus == sum(each.gpus for each in fleet.replicas)
    units = sum(pool.units or 0 for pool in found.pools if pool.name == "blocks")
    assert units == sum(500 if "=500" in each.settings else 64 for each in fleet.replicas)
