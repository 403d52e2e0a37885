"""Steps taken at once are the same as steps taken one by one."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.replay.build import build_replay
from dsv4kv.replay.describe import describe_replay, describe_totals
from tests.replay.scenes import LONG, SHORT, random_requests, small_config

POLICIES = ("lru", "fifo", "lfu", "lfu-aged", "gdsf", "sieve", "s3fifo", "arc")
STRATEGIES = ("full", "periodic:256", "zero", "zero:bounded", "ends", "ends+junctions")


def outcome(config: Any, requests: Any, longest: int | None) -> tuple[Any, int]:
    """Everything that a replay found but its series, and the turns it took."""
    made = build_replay(config, requests, longest)
    turns = 0
    while made.scheduler.turn():
        turns += 1
    result = describe_replay(made).model_dump(exclude={"series"})
    totals = describe_totals(made, ended=True)
    return (result, totals, made.outcome.samples_ns, made.scheduler.clock.now_s), turns


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.sampled_from(POLICIES),
    st.sampled_from(STRATEGIES),
    st.sampled_from([16, 24, 40, 200]),
    st.sampled_from([0, 2]),
)
def test_a_stretch_of_steps_ends_exactly_where_single_steps_end(
    seed: int, count: int, policy: str, strategy: str, blocks: int, drafts: int
) -> None:
    requests = random_requests(seed, count, 8, LONG if seed % 3 == 0 else SHORT)
    config = small_config(
        prefix__policy=policy,
        prefix__strategy=strategy,
        cache__num_blocks=blocks,
        cache__num_checkpoints=6,
        scheduler__speculative__draft_tokens=drafts,
        measure__seed=seed,
    )
    at_once, few = outcome(config, requests, None)
    one_by_one, many = outcome(config, requests, 1)
    assert at_once == one_by_one
    assert few <= many


def test_a_quiet_stretch_takes_one_turn() -> None:
    requests = random_requests(1, 1)[:1]
    config = small_config(workload__max_output_tokens=200)
    requests = [type(requests[0])(**asdict(requests[0]) | {"output_tokens": 200})]
    assert outcome(config, requests, None)[1] < 10
    assert outcome(config, requests, 1)[1] >= 199


@pytest.mark.parametrize("longest", [2, 3, 7])
def test_stretches_of_any_length_agree(longest: int) -> None:
    requests = random_requests(5, 12)
    config = small_config(cache__num_blocks=30)
    assert outcome(config, requests, longest)[0] == outcome(config, requests, None)[0]
