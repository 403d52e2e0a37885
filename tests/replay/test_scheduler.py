"""What the scheduler does with requests: one behaviour at a time, then whom it preempts.

Whom an engine preempts, and whom it lets begin, is as its own code answers.
"""

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dsv4kv.core import COMPILED
from dsv4kv.core.preemption import LastAdmitted, Retraction
from dsv4kv.core.scheduler import Scheduler
from dsv4kv.core.served import Served
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


# what the engines' own code did, with its versions
ANSWERS = json.loads((Path(__file__).parent / "data" / "preemption.json").read_text())
INTERPRETED = pytest.mark.skipif(COMPILED, reason="compiled rules take no other scheduler")


def served(number: int, prompt: int, output: int, done: int = 0) -> Served:
    """A request that has generated ``done`` tokens and was admitted after those before it."""
    made = Served(number, 0.0, prompt, output, lambda _: [], (), 0)
    made.generated, made.place, made.left = done, number, output - done
    return made


class Running:
    """Requests that decode, as an engine's rule sees its scheduler and its cache."""

    block_tokens = 256

    def __init__(self, decoding: list[Served], free: int) -> None:
        self.decoding, self.prefilling, self.waiting = decoding, list[Served](), deque[Served]()
        self.cache = SimpleNamespace(available=free, reserve=self.reserve)
        self.holds = dict.fromkeys((each.number for each in decoding), 0)
        self.lacks_of = dict(self.holds)

    @property
    def scheduler(self) -> Scheduler:
        return cast(Scheduler, self)

    def lacking(self) -> dict[Served, int]:
        found = {each: self.lacks_of[each.number] for each in self.decoding}
        return {each: lacks for each, lacks in found.items() if lacks}

    def stop(self, request: Served) -> None:
        self.decoding.remove(request)
        self.cache.available += self.holds.get(request.number, 0)

    def reserve(self, number: int, position: int) -> int:
        if self.lacks_of[number] > self.cache.available:
            return -1
        self.cache.available -= self.lacks_of[number]
        self.holds[number] += self.lacks_of.pop(number)
        self.lacks_of[number] = 0
        return position + 1


@INTERPRETED
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_same_requests_go_in_the_same_order_as_in_the_engine(engine: str) -> None:
    """Each has output so far, prompt, blocks held and lacking; then blocks free and who goes."""
    for requests, free, expected in ANSWERS[engine]:
        members = [served(n, prompt, 1000, out) for n, (out, prompt, _, _) in enumerate(requests)]
        made = Running(members, free)
        made.holds = {n: held for n, (_, _, held, _) in enumerate(requests)}
        made.lacks_of = {n: lacks for n, (*_, lacks) in enumerate(requests)}
        if engine == "vllm":
            LastAdmitted(made.scheduler).settle()
        else:
            Retraction(made.scheduler).settle()
        numbers = [each.number for each in made.waiting]
        # vLLM puts whom it preempts first before all others, SGLang behind them
        assert numbers == (expected[::-1] if engine == "vllm" else expected)


def test_vllm_preempts_a_prompt_that_was_admitted_last() -> None:
    requests = [request([1], output=600), request(range(10, 16), at=0.001, output=1)]
    config = small_config(
        cache__num_blocks=7, cache__block_tokens=128, prefix__rule="vllm", scheduler__step_tokens=9
    )
    made = build_replay(config, requests)
    scheduler = made.scheduler
    while not (preempted := [each for each in scheduler.waiting if each.evictions]):
        assert scheduler.turn()
    assert [each.number for each in preempted] == [1]
    assert [each.number for each in scheduler.decoding] == [0]
    assert 0 < preempted[0].reached < preempted[0].input_tokens
    scheduler.run()
    assert made.outcome.finished == 2
    assert scheduler.cache.private + scheduler.cache.shared == 0
    assert scheduler.cache.available == scheduler.cache.total


# what SGLang's own code answered, with its version
ADMITTED = json.loads((Path(__file__).parent / "data" / "admission.json").read_text())
PAGE = Running.block_tokens


def running(outputs: list[list[int]]) -> Running:
    """Requests that decode, by output tokens and those generated."""
    return Running([served(n, 100, out, done) for n, (out, done) in enumerate(outputs)], 0)


@INTERPRETED
@pytest.mark.parametrize("case", ADMITTED["admitted"], ids=str)
def test_sglang_admits_as_many_as_its_own_code(case: list[Any]) -> None:
    outputs, value, pages, queue, expected = case
    retraction = Retraction(running(outputs).scheduler)
    retraction.ratio = value
    begun: list[Served] = []
    for prompt, output in queue:
        new = served(0, prompt, output)
        needed = -(-prompt // PAGE)
        if needed + retraction.promised(new, begun) > pages:
            break
        pages -= needed
        begun.append(new)
    assert len(begun) == expected


@INTERPRETED
def test_the_ratio_of_new_tokens_falls_as_in_the_engine_and_starts_again() -> None:
    retraction = Retraction(running([]).scheduler)
    for more, expected in ADMITTED["decay"]:
        for _ in range(more):
            retraction.stepped(1)
        assert retraction.ratio == pytest.approx(expected, abs=1e-12)
    retraction.idle()
    assert retraction.ratio == ADMITTED["decay"][0][1]


@INTERPRETED
def test_after_a_retraction_the_ratio_is_what_was_generated_as_in_the_engine() -> None:
    for outputs, expected in ADMITTED["after"]:
        made = running(outputs)
        goes = served(99, 10**6, 10, 0)  # nobody has less output and a longer prompt
        made.decoding.append(goes)
        made.lacks_of[goes.number] = 1
        retraction = Retraction(made.scheduler)
        retraction.settle()
        assert list(made.waiting) == [goes]
        assert retraction.ratio == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rule", "decodes"), [("vllm", True), ("sglang", False)])
def test_sglang_computes_prompts_alone_and_vllm_beside_what_decodes(
    rule: str, decodes: bool
) -> None:
    # the second prompt comes while the first request decodes
    requests = [request([1], output=400), request(range(2, 34), at=0.05, output=1)]
    made = replay(requests, prefix__rule=rule, cache__block_tokens=128, cache__num_blocks=200)
    alone = replay(requests[:1], prefix__rule=rule, cache__block_tokens=128)
    chunks = 32 * 128 // 512
    steps = made.scheduler.clock.steps - alone.scheduler.clock.steps
    assert steps == (0 if decodes else chunks)
