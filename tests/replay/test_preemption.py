"""Whom an engine preempts where decoding lacks blocks, and who may begin beside those that run."""

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
from tests.replay.scenes import replay, request, small_config

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
