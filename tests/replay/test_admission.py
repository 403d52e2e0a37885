"""Who may begin beside those that run, as each engine decides it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.core.preemption import Retraction
from dsv4kv.core.served import Served
from tests.replay.scenes import replay, request
from tests.replay.test_preemption import INTERPRETED, Running, served

# what SGLang's own code answered, with its version
ANSWERS = json.loads((Path(__file__).parent / "data" / "admission.json").read_text())
PAGE = Running.block_tokens


def running(outputs: list[list[int]]) -> Running:
    """Requests that decode, by output tokens and those generated."""
    return Running([served(n, 100, out, done) for n, (out, done) in enumerate(outputs)], 0)


@INTERPRETED
@pytest.mark.parametrize("case", ANSWERS["admitted"], ids=str)
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
    for more, expected in ANSWERS["decay"]:
        for _ in range(more):
            retraction.stepped(1)
        assert retraction.ratio == pytest.approx(expected, abs=1e-12)
    retraction.idle()
    assert retraction.ratio == ANSWERS["decay"][0][1]


@INTERPRETED
def test_after_a_retraction_the_ratio_is_what_was_generated_as_in_the_engine() -> None:
    for outputs, expected in ANSWERS["after"]:
        made = running(outputs)
        goes = served(99, 10**6, 10, 0)  # nobody has less output and a longer prompt
        made.decoding.append(goes)
        made.lacks_of[goes.number] = 1
        retraction = Retraction(made.scheduler)
        retraction.settle()
        assert made.waiting == [goes]
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
