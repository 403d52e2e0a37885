"""What the scheduler does with requests, one behaviour at a time."""

import random

import pytest

from dsv4kv.replay.build import build_replay
from tests.replay.scenes import BLOCK, SMALL, everyone, replay, request, small_config

SYSTEM = [1, 2, 3, 4]


def test_every_request_gets_its_tokens() -> None:
    made = replay([request([1, 2], output=7), request([3], output=0), request([4], output=1)])
    assert made.outcome.finished == 3
    assert made.outcome.output_tokens == 8
    assert len(made.outcome.samples_ns["tpot"]) == 1


def test_a_second_turn_resumes_where_the_first_prompt_ended() -> None:
    made = replay(
        [request(SYSTEM, at=0), request([*SYSTEM, 5, 6], at=100)], prefix__strategy="ends"
    )
    tally = made.prompts.tally
    assert tally.saved_tokens == 4 * BLOCK
    assert made.scheduler.computed_tokens == 4 * BLOCK + 2 * BLOCK


def test_a_prompt_is_never_found_to_its_last_token() -> None:
    made = replay([request(SYSTEM, at=0), request(SYSTEM, at=100)], prefix__strategy="full")
    tally = made.prompts.tally
    assert tally.saved_tokens == 3 * BLOCK
    assert tally.lost["last_token"] == BLOCK


def test_without_a_checkpoint_at_a_junction_the_blocks_are_of_no_use() -> None:
    requests = [request([*SYSTEM, 10 * i], at=100.0 * i) for i in range(1, 4)]
    ends = replay(requests, prefix__strategy="ends").prompts.tally
    assert (ends.saved_tokens, ends.lost["no_checkpoint"]) == (0, 8 * BLOCK)
    both = replay(requests, prefix__strategy="ends+junctions").prompts.tally
    assert (both.saved_tokens, both.lost["no_checkpoint"]) == (4 * BLOCK, 4 * BLOCK)


def test_without_windows_they_are_computed_again() -> None:
    requests = [request(range(1, 9), at=0), request([*range(1, 9), 50], at=100)]
    for strategy, again in (("zero", 3 * 128), ("zero:bounded", 127)):
        made = replay(requests, prefix__strategy=strategy)
        tally = made.prompts.tally
        assert tally.saved_tokens == 8 * BLOCK - again
        assert tally.lost["replay"] == again
        assert made.scheduler.prompts.restored == 0


def test_a_checkpoint_that_made_room_for_another_is_named() -> None:
    requests = [
        request([1, 2], at=0), request([3, 4], at=100), request([1, 2, 9], at=200),
    ]  # fmt: skip
    made = replay(requests, cache__num_checkpoints=1, prefix__strategy="ends")
    assert made.prompts.tally.lost["evicted_checkpoint"] == 2 * BLOCK
    assert made.scheduler.cache.dropped == 2


def test_a_block_that_made_room_for_another_is_named() -> None:
    requests = [request(range(i * 10, i * 10 + 8), at=100.0 * i) for i in (1, 2, 3)]
    requests.append(request([*range(10, 18), 99], at=400))
    made = replay(requests, cache__num_blocks=20, prefix__strategy="full")
    tally = made.prompts.tally
    assert tally.lost["evicted_block"] > 0
    assert tally.saved_tokens + tally.lost["evicted_block"] == 8 * BLOCK
    assert made.scheduler.cache.evicted > 0


def test_a_partial_block_that_comes_again_is_lost_to_alignment() -> None:
    twice = [request([1, 2], at=at, input_tokens=BLOCK + 30) for at in (0, 100)]
    tally = replay(twice).prompts.tally
    assert (tally.saved_tokens, tally.lost["alignment"]) == (BLOCK, 30)


def test_a_request_waits_while_another_computes_its_prefix() -> None:
    requests = [request([*range(1, 9), 100 + i], output=1) for i in range(3)]
    waited = replay(requests, prefix__strategy="full", scheduler__step_tokens=4096)
    assert waited.scheduler.deferrals == 2
    assert waited.scheduler.computed_tokens == 9 * BLOCK + 2 * BLOCK
    rushed = replay(requests, prefix__strategy="full", prefix__defer=False,
                    scheduler__step_tokens=4096)  # fmt: skip
    assert rushed.scheduler.deferrals == 0
    assert rushed.scheduler.computed_tokens == 27 * BLOCK
    assert rushed.prompts.tally.in_flight_tokens == 16 * BLOCK


def test_one_that_waits_for_a_prefix_lets_others_pass() -> None:
    requests = [
        request([*range(1, 9), 100], output=1),
        request([*range(1, 9), 200], output=1),
        request([77], output=1),
    ]
    made = build_replay(small_config(scheduler__step_tokens=1500), requests)
    made.scheduler.turn()
    assert [each.number for each in made.scheduler.waiting] == [1]


def test_blocks_that_two_requests_computed_are_kept_once() -> None:
    requests = [request([1, 2, 3], output=2), request([1, 2, 3], output=2)]
    made = build_replay(small_config(prefix__defer=False, scheduler__step_tokens=4096), requests)
    made.scheduler.turn()
    ledger = made.scheduler.cache
    assert (ledger.shared, ledger.private) == (3, 0)
    made.scheduler.run()
    assert (ledger.shared, ledger.cached) == (0, 3)


def test_the_token_budget_cuts_prompts_and_serves_decoding_first() -> None:
    requests = [request([1], output=50), request(range(10, 20), at=0.003)]
    made = build_replay(small_config(), requests)
    positions = []
    while made.scheduler.turn():
        positions += [each.position for each in made.scheduler.prefilling]
    assert positions == [511, 1022]


def test_the_youngest_is_paused_and_the_oldest_goes_on() -> None:
    requests = [request([i], output=600) for i in range(1, 5)]
    config = small_config(cache__num_blocks=10, prefix__reuse=False, scheduler__paused_share=1.0)
    made = build_replay(config, requests)
    first = None
    while made.scheduler.turn():
        if first is None and made.scheduler.paused:
            first = [each.number for each in made.scheduler.paused]
    assert first == [2, 3]
    assert made.outcome.pauses > 0
    assert made.outcome.finished == 4


def test_paused_requests_beyond_their_blocks_start_again_and_lose_nothing() -> None:
    requests = [request([i], output=600) for i in range(1, 5)]
    made = replay(requests, cache__num_blocks=8, scheduler__paused_share=0.0,
                  prefix__reuse=False)  # fmt: skip
    assert made.outcome.evictions > 0
    assert made.outcome.finished == 4
    assert made.outcome.output_tokens == 2400
    assert made.scheduler.again_tokens > 0


def test_what_one_that_starts_again_gave_back_lets_the_others_go_on() -> None:
    """Four requests of two blocks lack one each, and paused ones may keep two blocks."""
    requests = [request([i], output=600) for i in range(1, 5)]
    config = small_config(cache__num_blocks=8, prefix__reuse=False, scheduler__paused_share=0.25)
    made = build_replay(config, requests)
    while not made.scheduler.waiting:
        made.scheduler.turn()
    assert [each.number for each in made.scheduler.waiting] == [3]
    assert [each.number for each in made.scheduler.paused] == [2]
    assert [each.number for each in made.scheduler.decoding] == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_the_more_paused_requests_may_keep_the_less_is_computed_again(seed: int) -> None:
    draw = random.Random(seed)
    requests = [
        request(input_tokens=draw.randint(100, 2000), output=draw.randint(200, 1200))
        for _ in range(100)
    ]
    shares = (0.0, 0.2, 0.5, 1.0)
    many = {"scheduler__max_requests": 256, "scheduler__step_tokens": 4096}
    again = [
        replay(
            requests, cache__num_blocks=200, scheduler__paused_share=share, **many
        ).scheduler.again_tokens
        for share in shares
    ]
    assert again[1] < again[0] / 1.5
    assert again == sorted(again, reverse=True)


def test_nobody_is_admitted_while_one_is_paused() -> None:
    requests = [request([i], at=0.0, output=600) for i in range(1, 5)]
    requests += [request([9], at=0.5, output=1)]
    made = build_replay(small_config(cache__num_blocks=8, prefix__reuse=False), requests)
    while made.scheduler.turn():
        if made.scheduler.paused:
            assert all(each.number < 4 for each in everyone(made.scheduler))


def test_slots_bound_the_requests_at_once() -> None:
    requests = [request([i], output=30) for i in range(20)]
    assert replay(requests, scheduler__max_requests=3).outcome.peak_requests == 3


def test_closed_arrivals_keep_their_concurrency_whatever_the_clock_says() -> None:
    requests = [request([i], at=1000.0 * i, output=30) for i in range(10)]
    made = replay(requests, workload__arrivals="closed", workload__concurrency=4)
    assert made.outcome.peak_requests == 4
    assert made.scheduler.clock.idle_s == 0


def test_speed_divides_the_times_between_arrivals() -> None:
    requests = [request([i], at=100.0 * i, output=2) for i in range(4)]
    slow, fast = (replay(requests, workload__speed=speed) for speed in (1, 10))
    assert slow.scheduler.clock.now_s == pytest.approx(300, abs=1)
    assert fast.scheduler.clock.now_s == pytest.approx(30, abs=1)


def test_a_request_longer_than_everything_is_refused_with_the_reason() -> None:
    long = request(range(100), output=1)
    made = replay([long, request([5])], cache__num_blocks=20)
    assert dict(made.outcome.rejected) == {"longer than all blocks together": 1}
    made = replay([long, request([5])], cache__max_context_tokens=4096)
    assert dict(made.outcome.rejected) == {"longer than the longest context": 1}
    assert made.outcome.finished == 1


def test_a_request_that_just_fits_is_served_alone() -> None:
    requests = [request([1], output=40), request(range(10, 26), output=1)]
    made = replay(requests, cache__num_blocks=16)
    assert made.outcome.finished == 2


def test_rejected_drafts_are_rolled_back_and_counted() -> None:
    made = replay(
        [request([1], output=200)],
        scheduler__speculative__draft_tokens=3,
        scheduler__speculative__acceptance=0.5,
    )
    scheduler = made.scheduler
    kept = scheduler.drafted - scheduler.rolled_back
    assert kept + scheduler.clock.steps - 1 == 199
    assert 0 < scheduler.rolled_back < scheduler.drafted


def test_checkpoints_cost_the_bytes_they_move() -> None:
    requests = [request(SYSTEM, at=0, output=1), request([*SYSTEM, 5], at=100, output=1)]
    made = replay(requests, prefix__strategy="ends")
    size = made.memory.checkpoint_bytes
    assert made.scheduler.prompts.kept_bytes == 2 * size
    assert made.scheduler.clock.done.copy_bytes == 2 * 3 * size  # two written, one restored


def test_the_shipped_defaults_hold_every_small_setting() -> None:
    assert set(SMALL) <= {
        f"{section}.{key}"
        for section, part in small_config()
        if not isinstance(part, str)
        for key, _ in part
    }
