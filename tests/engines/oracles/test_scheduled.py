"""A replay by vLLM's rule schedules, step by step, what vLLM's own scheduler schedules."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.build import build_replay
from dsv4kv.replay.requests import Served
from dsv4kv.replay.scheduler import Limits
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
        "prefix.rule": f"vllm-v4:{RULES[workload.retention]}",
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
    scheduler = build_replay(config, requests, longest_stretch=1).scheduler
    steps, step = list[Step](), Step()
    compute, advance = scheduler._compute, scheduler._advance

    def computing(served: Served, position: int, earlier: Sequence[int] = ()) -> None:
        step[served.number] = step.get(served.number, 0) + position - served.position
        compute(served, position, earlier)

    def advancing(count: int, *others: Any) -> None:
        assert count == 1
        step.update({served.number: 1 for served in scheduler.decoders.members})
        advance(count, *others)

    vars(scheduler).update(_compute=computing, _advance=advancing)
    while scheduler.turn():
        if step:
            steps.append(dict(step))
            step.clear()
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
    """
    assert [steps_of(workload) for workload in FEW] == [each.each_step for each in FEW]


def test_workloads_share_prefixes_in_one_step_and_run_out_of_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ample = [replace(few, blocks=AMPLE) for few in FEW]
    assert sum(steps_of(a) != few.each_step for a, few in zip(ample, FEW, strict=True)) >= 5
    monkeypatch.setattr(Limits, "finds_scheduled", False)
    many = [each for each in WORKLOADS if each.blocks == AMPLE]
    assert sum(steps_of(each) != each.each_step for each in many) >= 5


@pytest.mark.skipif(
    "DSV4KV_ENGINES" not in os.environ,
    reason="the engines' packages are not unpacked here: make engines",
)
def test_vllms_scheduler_answers_as_recorded() -> None:
    found = answered(Path(os.environ["DSV4KV_ENGINES"]))
    assert [each.steps for each in found] == [each.steps for each in WORKLOADS]
