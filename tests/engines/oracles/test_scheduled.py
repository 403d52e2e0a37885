"""A replay by vLLM's rule schedules, step by step, what vLLM's own scheduler schedules."""

from collections.abc import Sequence

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.served import Hit, Served
from dsv4kv.replay.build import build_replay
from dsv4kv.traces.request import Request
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.scheduled import PAGE, Step, Workload, answered, read_workloads
from tests.replay.scenes import CLOCK

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
        "cost.calibration": CLOCK,
    }
    config = load_config(None, [f"{k}={v}" for k, v in settings.items()], ReplayConfig).config
    requests = [Request(0.0, n, out, tuple(pages), PAGE) for pages, n, out in workload.requests]
    watch = Watch()
    scheduler = build_replay(config, requests, below=watch).scheduler
    scheduler.ended, steps = list[Served](), list[Step]()
    while scheduler.turn():
        for served in (*scheduler.decoding, *scheduler.ended):
            watch.note(served)
        if taken := scheduler.clock.steps - len(steps):  # 0 if it waited
            step = Step({number: tokens // taken for number, tokens in watch.step.items()})
            steps += [step] * taken  # steps in which nothing but decoding happens
            watch.step = Step()
        scheduler.ended.clear()
    return steps


class Watch:
    """In place of tiers: hears where requests resume, and what is computed of them."""

    fetches = False

    def __init__(self) -> None:
        self.step, self.reached = Step(), dict[int, int]()

    def note(self, served: Served) -> None:
        if tokens := served.position - self.reached[served.number]:
            self.step[served.number] = self.step.get(served.number, 0) + tokens
            self.reached[served.number] = served.position

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        self.reached[served.number] = hit.resumed * PAGE
        return hit

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        self.note(served)

    def fetch(self, served: Served, found: int, usable: int) -> None: ...
    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None: ...


WORKLOADS = read_workloads()


@pytest.mark.parametrize("number", range(len(WORKLOADS)))
def test_every_step_is_vllms(number: int) -> None:
    """In pools of one to three prompts, too: requests wait, are preempted and begin again.

    Long answers go by blocks that are not cached, as nobody knows what they would be found by.
    Some workloads have context alone.
    """
    workload = WORKLOADS[number]
    assert steps_of(workload) == workload.each_step


@needs_engines
def test_vllms_scheduler_answers_as_recorded() -> None:
    assert [each.steps for each in answered()] == [each.steps for each in WORKLOADS]
