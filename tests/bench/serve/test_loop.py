"""The serving loop: what goes in comes out, whatever is served over whatever cache."""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import ServingLoop, unused_bytes
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from tests.bench.serve.scenes import Scene, run, scenes
from tests.bench.serve.serving import make_requests, serving
from tests.examples import examples


@given(scenes())
def test_every_request_is_served_once_in_order_whole_and_leaves_nothing_or_is_rejected(
    scene: Scene,
) -> None:
    log = run(scene)
    count, plan, moves = len(scene.served), log.manager.plan, log.tokens()
    assert log.admitted == list(range(count)) == sorted(log.released)
    assert (log.totals.requests, log.totals.rejected) == (count, len(scene.lengths) - count)
    for request, length in enumerate(scene.served):  # without gap or repeat
        steps = moves[request]
        assert steps[0][0] == 0
        assert all(kept == before for (_, kept), (before, _) in pairwise(steps))
        assert all(kept > before for before, kept in steps)
        assert steps[-1][1] == scene.fed(length)
    assert (log.manager.num_held_blocks, log.manager.num_free_slots) == (0, plan.num_slots)
    peak = max((step.held for step in log.steps), default=0)
    assert log.totals.peak_blocks == peak
    assert peak <= sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups)


@given(scenes())
def test_drafts_are_what_decoding_took_beyond_one_and_kept_or_rolled_back(scene: Scene) -> None:
    log, served = run(scene), scene.served
    drafted = rolled_back = 0
    for step in log.steps:
        for request, before in step.before.items():
            drafted += step.take(request) - 1 if before >= served[request][0] else 0
            rolled_back += step.after[request] - step.kept[request]
            assert step.kept[request] > before
    assert log.totals.drafted_tokens == drafted
    assert log.totals.rolled_back_tokens == rolled_back
    if scene.config.workload.speculative.acceptance == 1:
        assert rolled_back == 0
    if scene.config.workload.speculative.acceptance == 0:
        assert rolled_back == drafted


@given(scenes(max_draft_tokens=0))
def test_a_naive_simulation_takes_the_same_steps(scene: Scene) -> None:
    log = run(scene)
    assert [{r: step.take(r) for r in step.before} for step in log.steps] == simulate(scene)


def simulate(scene: Scene) -> list[dict[int, int]]:
    """Tokens that every request takes in every step, request by request and one at a time."""
    waiting = deque(enumerate(scene.served))
    running: dict[int, tuple[int, int]] = {}
    done: Counter[int] = Counter()
    steps = []
    while waiting or running:
        while waiting and len(running) < scene.config.workload.concurrency:
            together = [*running.values(), waiting[0][1]]
            needs = [sum(blocks) for blocks in zip(*map(scene.blocks, together), strict=True)]
            if any(need > pool for need, pool in zip(needs, scene.pools(), strict=True)):
                break
            running.update([waiting.popleft()])
        take = {r: 1 for r, length in running.items() if done[r] >= length[0]}
        budget = scene.config.workload.step_tokens - len(take)
        for request, (prompt, _) in running.items():
            if request not in take and budget > 0:
                take[request] = min(prompt - done[request], budget)
                budget -= take[request]
        done.update(take)
        running = {r: length for r, length in running.items() if done[r] < scene.fed(length)}
        steps.append(take)
    return steps


def test_the_executor_gets_decoders_together_and_each_prompt_chunk_alone() -> None:
    executor, config = Mock(), serving(3, 100)
    manager, requests = run(Scene([], config)).manager, make_requests((4, 3), (5, 3), (120, 1))
    ServingLoop(manager, requests, config, Recorder(), executor).run()
    assert [
        (kind, given[0].requests.tolist(), given[0].batch.num_tokens)
        for kind, given, _ in executor.method_calls
        if kind in ("prefill", "decode")
    ] == [
        ("prefill", [0], 4),
        ("prefill", [1], 5),
        ("prefill", [2], 91),
        ("decode", [0, 1], 2),
        ("prefill", [2], 29),
        ("decode", [0, 1], 2),
    ]


CONTEXT_TOKENS = 2000


def fill(tokens: Sequence[int], preset: str = "v4-flash", **options: Any) -> KVCacheManager:
    """A cache whose slots hold requests of these lengths."""
    plan = plan_cache(
        load_model(preset), max_context_tokens=CONTEXT_TOKENS, num_slots=len(tokens), **options
    )
    manager = KVCacheManager(plan, data=False)
    slots = [manager.admit_request() for _ in tokens]
    prepare_forward(manager, slots, [0] * len(tokens), tokens)
    return manager


def brute_force(manager: KVCacheManager, slots: Sequence[int]) -> int:
    """Bytes of held pages less bytes of entries: layer by layer, slot by slot."""
    unused = 0
    for schema in manager.plan.schemas:
        for table in manager.tables:
            if schema.layer.layer_idx not in table.group.layers:
                continue
            row = table.blocks[table.group.lane_of(schema.layer.layer_idx)]
            for page in filter(None, (schema.main, schema.indexer)):
                for slot in slots:
                    pages = sum(block >= 0 for block in row[slot])
                    entries = int(manager.tokens[slot]) // schema.layer.ratio
                    unused += pages * page.page_bytes - entries * page.format.entry_bytes
    return unused


@examples(150)
@given(
    tokens=st.lists(st.integers(0, CONTEXT_TOKENS), min_size=1, max_size=4),
    preset=st.sampled_from(("v4-flash", "v4-pro", "v4.1-flash", "v3.2")),
    sharing=st.sampled_from(("model", "type", "layer")),
    block_tokens=st.sampled_from((128, 256, 640)),
)
def test_rounding_is_what_held_pages_hold_beyond_entries(
    tokens: list[int], preset: str, sharing: str, block_tokens: int
) -> None:
    manager = fill(tokens, preset, sharing=sharing, block_tokens=block_tokens)
    slots = list(range(len(tokens)))
    assert unused_bytes(manager, np.array(slots)) == brute_force(manager, slots)
