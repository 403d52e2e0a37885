"""Steps taken at once are the same as steps taken one by one."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.replay.build import build_replay
from dsv4kv.replay.run import describe_replay, describe_totals
from tests.examples import examples
from tests.replay.scenes import LONG, SHORT, random_requests, request, small_config

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


@examples(75)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.sampled_from(POLICIES),
    st.sampled_from(STRATEGIES),
    st.sampled_from([16, 24, 40, 200]),
    st.sampled_from([0, 2]),
    st.sampled_from([24, 100, 512]),
    st.booleans(),
)
def test_a_stretch_of_steps_ends_exactly_where_single_steps_end(
    seed: int,
    count: int,
    policy: str,
    strategy: str,
    blocks: int,
    drafts: int,
    budget: int,
    defer: bool,
) -> None:
    requests = random_requests(seed, count, 8, LONG if seed % 3 == 0 else SHORT)
    config = small_config(
        prefix__policy=policy,
        prefix__strategy=strategy,
        cache__num_blocks=blocks,
        cache__num_checkpoints=6,
        scheduler__speculative__draft_tokens=drafts,
        scheduler__step_tokens=budget,
        prefix__defer=defer,
        measure__seed=seed,
    )
    at_once, few = outcome(config, requests, None)
    one_by_one, many = outcome(config, requests, 1)
    assert at_once == one_by_one
    assert few <= many


@examples(60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["vllm-v4:dense", "vllm-v4:4096", "vllm-v4:semantic"]),
    st.sampled_from([60, 120, 400, 4000]),
    st.sampled_from([0, 2]),
    st.sampled_from([100, 131, 512]),
)
def test_so_it_does_where_engines_take_blocks_step_by_step(
    seed: int, rule: str, blocks: int, drafts: int, budget: int
) -> None:
    """Chunks of prompts give windows back beside others that decode, and do it, too.

    The most blocks in use are those at the end of a turn: windows come and go within one.
    """
    requests = random_requests(seed, 16, 24, (1, 40, 130, 400))
    config = small_config(
        prefix__rule=rule,
        cache__num_blocks=blocks,
        cache__block_tokens=128,
        scheduler__speculative__draft_tokens=drafts,
        scheduler__step_tokens=budget,
    )
    (at_once, few), (one_by_one, many) = (outcome(config, requests, most) for most in (None, 1))
    (at_once, peak), (one_by_one, highest) = map(_part_from_peak, (at_once, one_by_one))
    assert at_once == one_by_one
    assert few <= many
    assert peak <= highest <= peak + 8 * config.scheduler.max_requests


def _part_from_peak(found: Any) -> tuple[Any, int]:
    """An outcome without the moment of the most blocks, and these."""
    result, totals, *rest = found
    peak: int = result["pools"][-1].pop("peak_units")
    totals = totals.model_dump(exclude={"peak_blocks", "peak_rounding_bytes"})
    return (result | {"rounding_bytes": 0}, totals, rest), peak


def test_a_quiet_stretch_takes_one_turn() -> None:
    requests = random_requests(1, 1)[:1]
    config = small_config(workload__max_output_tokens=200)
    requests = [type(requests[0])(**asdict(requests[0]) | {"output_tokens": 200})]
    assert outcome(config, requests, None)[1] < 10
    assert outcome(config, requests, 1)[1] >= 199


@pytest.mark.parametrize("policy", POLICIES)
def test_the_chunks_of_a_long_prompt_take_two_turns(policy: str) -> None:
    requests = [request(range(1, 41), output=1)]
    config = small_config(prefix__policy=policy, scheduler__step_tokens=256)
    at_once, turns = outcome(config, requests, None)
    one_by_one, steps = outcome(config, requests, 1)
    assert at_once == one_by_one
    assert (turns, steps) == (2, 20)  # the last chunk leaves room for others: a turn of its own


def test_a_request_that_ends_ends_the_stretch_of_a_prompt_beside_it() -> None:
    requests = [request([1], output=6), request(range(10, 50), output=1)]
    config = small_config(scheduler__step_tokens=256)
    made = build_replay(config, requests)
    finished: list[tuple[int, int]] = []
    while made.scheduler.turn():
        positions = [each.position for each in made.scheduler.prefilling]
        finished += [(made.outcome.finished, position) for position in positions]
    ended = [position for count, position in finished if count]
    assert ended[0] == 128 + 5 * 255
    assert outcome(config, requests, None)[0] == outcome(config, requests, 1)[0]


@examples(50)
@given(st.integers(1, 127), st.integers(1, 5), st.sampled_from(["periodic:128", "periodic:256"]))
def test_blocks_run_out_for_a_decoding_request_beside_a_long_prompt(
    prompt: int, checkpoints: int, strategy: str
) -> None:
    """An evicted block takes its checkpoint along: before or after the prompt leaves its own."""
    requests = [
        request(range(1, 5), output=1),
        request([10], at=100, input_tokens=prompt, output=200),
        request(range(20, 36), at=100, output=1),
    ]
    config = small_config(
        cache__num_blocks=21,
        cache__num_checkpoints=checkpoints,
        prefix__strategy=strategy,
        scheduler__step_tokens=101,
    )
    assert outcome(config, requests, None)[0] == outcome(config, requests, 1)[0]


def test_blocks_that_a_chunk_gives_back_were_held_until_then() -> None:
    """The first request stores a block that the second has begun to compute, too."""
    requests = [
        request(range(1, 8), input_tokens=771, output=100),  # needs a block in its next step
        request([*range(1, 7), *range(50, 81)], output=1),
    ]
    config = small_config(prefix__defer=False, prefix__strategy="full", scheduler__step_tokens=60)
    assert outcome(config, requests, None)[0] == outcome(config, requests, 1)[0]


@pytest.mark.parametrize("longest", [2, 3, 7])
def test_stretches_of_any_length_agree(longest: int) -> None:
    requests = random_requests(5, 12)
    config = small_config(cache__num_blocks=30)
    assert outcome(config, requests, longest)[0] == outcome(config, requests, None)[0]


@examples(50)
@given(st.integers(0, 10**6), st.sampled_from(["ideal", "vllm"]), st.floats(1e-4, 1e-2))
def test_decode_steps_that_are_put_off_are_the_same_later(
    seed: int, rule: str, gap_s: float
) -> None:
    requests = random_requests(seed, 12, 8, LONG)
    config = small_config(prefix__rule=rule, cache__num_blocks=40)
    whole, pieces = build_replay(config, requests), build_replay(config, requests)
    whole.scheduler.run()
    until_s = 0.0
    while until_s < whole.scheduler.clock.now_s:
        until_s += gap_s
        while pieces.scheduler.clock.now_s < until_s and pieces.scheduler.turn(until_s):
            pass
    pieces.scheduler.run()
    assert describe_replay(pieces) == describe_replay(whole)
    assert pieces.outcome.samples_ns == whole.outcome.samples_ns
