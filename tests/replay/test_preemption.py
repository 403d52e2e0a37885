"""Where decoding lacks blocks an engine's rule preempts whom that engine preempts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dsv4kv.prefix.tree import NO_IDS
from dsv4kv.replay.build import build_replay
from dsv4kv.replay.preemption import ENGINES, Batch, EnginePreemption
from dsv4kv.replay.requests import Served
from tests.replay.scenes import LONG, random_requests, request, small_config
from tests.replay.test_stretches import outcome

# what the engines' own code did, with its versions
ANSWERS = json.loads((Path(__file__).parent / "data" / "preemption.json").read_text())


class Members:
    """Decoding requests as the rules see them."""

    def __init__(self, members: list[Served], lacking: list[int]) -> None:
        self.members = members
        self.left = np.array([each.output_tokens - each.generated for each in members])
        self._lacking = np.array(lacking)

    def lacking(self) -> Any:
        return self._lacking

    def most_lacking(self) -> int:
        return int(self._lacking.sum())

    def remove(self, places: list[int]) -> None:
        for place in places:
            del self.members[place]


def batch_of(requests: list[list[int]], free: int) -> Batch:
    """A batch of requests: output tokens so far, prompt, blocks held, blocks lacking."""
    members = [
        Served(number, 0.0, prompt, 1000, lambda: NO_IDS, (), 0, generated=out, place=number)
        for number, (out, prompt, _, _) in enumerate(requests)
    ]
    ledger = SimpleNamespace(available=free)

    def let_go(served: Served) -> None:
        ledger.available += requests[served.number][2]

    decoders = Members(members, [lacking for *_, lacking in requests])
    return Batch(cast(Any, ledger), cast(Any, decoders), [], [], let_go)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_requests_go_in_the_same_order_as_in_the_engine(engine: str) -> None:
    for requests, free, expected in ANSWERS[engine]:
        batch = batch_of(requests, free)
        EnginePreemption(batch, ENGINES[engine]).settle()
        numbers = [served.number for served in batch.waiting]
        # vLLM puts whom it preempts first before all others, SGLang behind them
        assert numbers == (expected[::-1] if engine == "vllm" else expected)


@pytest.mark.parametrize("rule", ["vllm", "sglang"])
def test_nobody_is_paused_by_an_engine_and_everybody_ends(rule: str) -> None:
    # SGLang keeps room for outputs: it needs many steps to expect too little of them
    requests = [request([i], at=i / 2, output=2000) for i in range(1, 13)]
    config = small_config(cache__num_blocks=48, cache__block_tokens=128, prefix__rule=rule)
    made = build_replay(config, requests)
    while made.scheduler.turn():
        assert not made.scheduler.paused
    assert (made.outcome.pauses, made.outcome.finished) == (0, 12)
    assert made.outcome.evictions > 0


@pytest.mark.parametrize(
    ("rule", "blocks", "drafts"),
    [
        ("vllm", 16, 0),
        ("sglang", 16, 0),
        ("vllm-v4:dense", 140, 0),
        ("vllm-v4:semantic", 160, 3),
    ],
)
def test_steps_taken_at_once_preempt_as_single_steps_do(
    rule: str, blocks: int, drafts: int
) -> None:
    config = small_config(
        cache__num_blocks=blocks,
        cache__block_tokens=128,
        prefix__rule=rule,
        scheduler__step_tokens=128,
        scheduler__speculative__draft_tokens=drafts,
    )
    preempted = 0
    for seed in range(4):
        requests = random_requests(seed, 20, 8, LONG)
        (at_once, few), (one_by_one, many) = (outcome(config, requests, n) for n in (None, 1))
        assert at_once == one_by_one
        assert few < many
        preempted += at_once[0]["evictions"]
    assert preempted


def test_vllm_preempts_a_prompt_that_was_admitted_last() -> None:
    requests = [request([1], output=600), request(range(10, 16), at=0.001, output=1)]
    config = small_config(
        cache__num_blocks=7,
        cache__block_tokens=128,
        prefix__rule="vllm",
        scheduler__step_tokens=9,
    )
    made = build_replay(config, requests)
    scheduler = made.scheduler
    while not (preempted := [each for each in scheduler.waiting if each.evictions]):
        assert scheduler.turn()
    assert [each.number for each in preempted] == [1]
    assert [each.number for each in scheduler.decoders.members] == [0]
    assert 0 < preempted[0].reached < preempted[0].input_tokens
    scheduler.run()
    assert made.outcome.finished == 2
    assert scheduler.ledger.private + scheduler.ledger.shared == 0
    assert scheduler.ledger.available == scheduler.ledger.total
