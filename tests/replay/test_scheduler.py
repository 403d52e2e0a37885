"""What the scheduler does with requests, one behaviour at a time."""

import pytest

from dsv4kv.replay.build import build_replay
from dsv4kv.traces.request import Request
from tests.replay.scenes import BLOCK, replay, request, small_config

SYSTEM = [1, 2, 3, 4]


TWO = [request(range(1, 9)), request([*range(1, 9), 50], at=100)]
PARTED = [request([*SYSTEM, 10 * number], at=100.0 * number) for number in range(1, 4)]
OTHERS = [request([1, 2]), request([3, 4], at=100), request([1, 2, 9], at=200)]
PARTIAL = [request([1, 2], at=at, input_tokens=BLOCK + 30) for at in (0, 100)]


@pytest.mark.parametrize(
    ("strategy", "requests", "saved", "lost"),
    [
        ("ends", [request(SYSTEM), request([*SYSTEM, 5, 6], at=100)], 4 * BLOCK, {}),
        ("full", [request(SYSTEM), request(SYSTEM, at=100)], 3 * BLOCK, {"last_token": BLOCK}),
        ("full", PARTIAL, BLOCK, {"alignment": 30}),
        ("ends", PARTED, 0, {"no_checkpoint": 8 * BLOCK}),
        ("ends+junctions", PARTED, 4 * BLOCK, {"no_checkpoint": 4 * BLOCK}),
        ("zero", TWO, 8 * BLOCK - 3 * 128, {"replay": 3 * 128}),
        ("zero:bounded", TWO, 8 * BLOCK - 127, {"replay": 127}),
        ("ends", OTHERS, 0, {"evicted_checkpoint": 2 * BLOCK}),
    ],
)
def test_what_was_seen_is_saved_or_lost_for_a_reason(
    strategy: str, requests: list[Request], saved: int, lost: dict[str, int]
) -> None:
    few = {"cache__num_checkpoints": 1} if requests is OTHERS else {}
    tally = replay(requests, prefix__strategy=strategy, **few).prompts.tally
    assert tally.saved_tokens == saved
    assert {reason: tokens for reason, tokens in tally.lost.items() if tokens} == lost


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


def test_a_request_longer_than_everything_is_refused_with_the_reason() -> None:
    long = request(range(100), output=1)
    made = replay([long, request([5])], cache__num_blocks=20)
    assert dict(made.outcome.rejected) == {"longer than all blocks together": 1}
    made = replay([long, request([5])], cache__max_context_tokens=4096)
    assert dict(made.outcome.rejected) == {"longer than the longest context": 1}
    assert made.outcome.finished == 1
