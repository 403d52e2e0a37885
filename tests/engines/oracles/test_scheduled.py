"""A replay by vLLM's rule schedules, step by step, what vLLM's own scheduler schedules."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.scheduler import Scheduler
from dsv4kv.core.served import Served
from dsv4kv.engines import names
from dsv4kv.engines.names import find_rule
from dsv4kv.replay.build import build_replay
from dsv4kv.traces.request import Request
from tests.engines.oracles.scheduled import (
    AMPLE,
    PAGE,
    Step,
    Workload,
    answered,
    read_workloads,
)

RULES = {None: "dense", 0: "semantic", 4096: "4096"}


def steps_of(workload: Workload) -> list[Step]:
    """Tokens that every step of a replay schedules, by request."""
    settings = {
        "model.preset": "v4-flash",
        "prefix.rule": "vllm" if workload.one_group else f"vllm-v4:{RULES[workload.retention]}",
        "cache.memory_bytes": "null",
        "cache.num_blocks": workload.blocks,
        "cache.block_tokens": PAGE,
        "scheduler.step_tokens": workload.chunk_tokens,
        "scheduler.max_requests": workload.running,
        "workload.arrivals": "closed",
        "workload.concurrency": workload.concurrency,
        "cost.source": "stated",  # no client's time passes between an end and the next request
    }
    config = load_config(None, [f"{k}={v}" for k, v in settings.items()], ReplayConfig).config
    requests = [Request(0.0, n, out, tuple(pages), PAGE) for pages, n, out in workload.requests]
    made = build_replay(config, requests)
    prompts, reached = made.scheduler.prompts, dict[int, int]()
    steps, step = list[Step](), Step()
    begin, commit = prompts.begin, prompts.commit

    def beginning(served: Served, needed: int) -> int:
        moved = begin(served, needed)
        reached[served.number] = served.position
        return moved

    def computed(served: Served) -> int:
        note(served)
        return commit(served)

    def note(served: Served) -> None:
        if tokens := served.position - reached[served.number]:
            step[served.number] = step.get(served.number, 0) + tokens
            reached[served.number] = served.position

    def stepped(scheduler: Scheduler) -> None:
        for served in scheduler.decoding:
            note(served)
        steps.append(dict(step))
        step.clear()

    vars(prompts).update(begin=beginning, commit=computed)
    vars(made.outcome).update(stepped=stepped)
    made.scheduler.run()
    return steps


WORKLOADS = read_workloads()
FEW = [each for each in WORKLOADS if each.blocks < AMPLE]


@pytest.mark.parametrize("number", [n for n, w in enumerate(WORKLOADS) if w.blocks == AMPLE])
def test_where_blocks_suffice_every_step_is_vllms(number: int) -> None:
    workload = WORKLOADS[number]
    assert steps_of(workload) == workload.each_step


def test_where_blocks_are_scarce_every_step_is_vllms() -> None:
    """In pools of one to three prompts: requests wait, are preempted and begin again.

    Long answers go by blocks that are not cached, as nobody knows what they would be found by.
    Some workloads have context alone.
    """
    assert [steps_of(workload) for workload in FEW] == [each.each_step for each in FEW]


def test_workloads_share_prefixes_in_one_step_and_run_out_of_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ample = [replace(few, blocks=AMPLE) for few in FEW]
    assert sum(steps_of(a) != few.each_step for a, few in zip(ample, FEW, strict=True)) >= 5
    for name in ("vllm", *(f"vllm-v4:{kept}" for kept in RULES.values())):
        rule = find_rule(name)
        unseen = replace(rule.policy, finds_scheduled=False)
        monkeypatch.setitem(names.RULES, name, replace(rule, policy=unseen))
    many = [each for each in WORKLOADS if each.blocks == AMPLE]
    assert sum(steps_of(each) != each.each_step for each in many) >= 5


@pytest.mark.skipif(
    "DSV4KV_ENGINES" not in os.environ,
    reason="the engines' packages are not unpacked here: make engines",
)
def test_vllms_scheduler_answers_as_recorded() -> None:
    found = answered(Path(os.environ["DSV4KV_ENGINES"]))
    assert [each.steps for each in found] == [each.steps for each in WORKLOADS]
