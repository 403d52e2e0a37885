"""Who may begin beside those that run, as each engine decides it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dsv4kv.prefix.tree import NO_IDS
from dsv4kv.replay.preemption import Batch, NewTokenRatio
from dsv4kv.replay.requests import Served
from tests.replay.scenes import replay, request

# what SGLang's own code answered, with its version
ANSWERS = json.loads((Path(__file__).parent / "data" / "admission.json").read_text())
PAGE = 256


def served(prompt: int, output: int, done: int = 0) -> Served:
    """A request that has generated ``done`` tokens."""
    made = Served(0, 0.0, prompt, output, lambda: NO_IDS, (), 0, generated=done)
    made.prompt_tokens = prompt
    return made


class Running:
    """Requests that decode, as the ratio sees them: pairs of outputs and what is done of them."""

    block_tokens = PAGE

    def __init__(self, outputs: list[list[int]]) -> None:
        self.members = [served(100, output, done) for output, done in outputs]
        self.left = np.array([output - done for output, done in outputs])

    def __len__(self) -> int:
        return len(self.members)


def batch_of(outputs: list[list[int]]) -> Batch:
    decoders: Any = Running(outputs)
    return Batch(cast(Any, SimpleNamespace()), decoders, [], [], lambda _: None)


def admitted(batch: Batch, ratio: NewTokenRatio, pages: int, queue: list[list[int]]) -> int:
    """How many of a queue begin in one step where so many pages can be had."""
    begun: list[Served] = []
    for prompt, output in queue:
        new = served(prompt, output)
        needed = -(-prompt // PAGE)
        if needed + ratio.promised(batch, new, begun) > pages:
            break
        pages -= needed
        begun.append(new)
    return len(begun)


@pytest.mark.parametrize("case", ANSWERS["admitted"], ids=str)
def test_sglang_admits_as_many_as_its_own_code(case: list[Any]) -> None:
    outputs, value, pages, queue, expected = case
    ratio = NewTokenRatio()
    ratio.value = value
    assert admitted(batch_of(outputs), ratio, pages, queue) == expected


def test_the_ratio_of_new_tokens_falls_as_in_the_engine() -> None:
    ratio = NewTokenRatio()
    for steps, expected in ANSWERS["decay"]:
        if steps:
            ratio.stepped(steps)
        assert ratio.value == pytest.approx(expected, abs=1e-12)


def test_after_a_retraction_the_ratio_is_what_was_generated_as_in_the_engine() -> None:
    for outputs, expected in ANSWERS["after"]:
        ratio = NewTokenRatio()
        ratio.retracted(batch_of(outputs).decoders)
        assert ratio.value == pytest.approx(expected, abs=1e-12)


def test_where_nobody_runs_the_ratio_starts_again() -> None:
    ratio = NewTokenRatio()
    ratio.stepped(100)
    ratio.stepped(0)
    assert ratio.value == NewTokenRatio().value


@pytest.mark.parametrize(("rule", "decodes"), [("vllm", True), ("sglang", False)])
def test_sglang_computes_prompts_alone_and_vllm_beside_what_decodes(
    rule: str, decodes: bool
) -> None:
    # the second prompt comes while the first request decodes
    requests = [request([1], output=400), request(range(2, 34), at=0.05, output=1)]
    made = replay(requests, prefix__rule=rule, cache__block_tokens=128, cache__num_blocks=200)
    alone = replay(requests[:1], prefix__rule=rule, cache__block_tokens=128)
    chunks = 32 * 128 // 512
    steps = made.scheduler.clock.done.steps - alone.scheduler.clock.done.steps
    assert steps == (0 if decodes else chunks)


def test_room_for_outputs_keeps_a_request_waiting_in_sglang_and_not_in_vllm() -> None:
    requests = [request([1], output=3000), request([2], at=0.01, output=3000)]
    peaks = {
        rule: replay(
            requests, prefix__rule=rule, cache__block_tokens=128, cache__num_blocks=40
        ).outcome.peak_requests
        for rule in ("vllm", "sglang")
    }
    assert peaks == {"vllm": 2, "sglang": 1}
