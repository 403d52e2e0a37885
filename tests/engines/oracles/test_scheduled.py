"""A replay by vLLM's rule schedules, step by step, what vLLM's own scheduler schedules."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.build import build_replay
from dsv4kv.replay.requests import Served
from dsv4kv.traces.request import Request
from tests.engines.oracles.scheduled import (
    AMPLE,
    PAGE,
    Step,
    Workload,
    answered,
    draw_workloads,
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

    def advancing(count: int, *others: object) -> None:
        assert count == 1
        step.update({served.number: 1 for served in scheduler.decoders.members})
        advance(count, *others)  # type: ignore[call-arg]

    scheduler._compute, scheduler._advance = computing, advancing  # type: ignore[method-assign]
    while scheduler.turn():
        if step:
            steps.append(dict(step))
            step.clear()
    return steps


WORKLOADS = read_workloads()


@pytest.mark.parametrize("number", [n for n, w in enumerate(WORKLOADS) if w.blocks == AMPLE])
def test_where_blocks_suffice_every_step_is_vllms(number: int) -> None:
    workload = WORKLOADS[number]
    assert steps_of(workload) == workload.each_step
