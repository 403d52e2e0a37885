"""``workload.data: real``: what the scheduler decides, done on bytes, and compared."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.errors import ConfigError
from dsv4kv.measure import recorder
from dsv4kv.ops.registry import load_backend
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.clock import MeasuredClock, VirtualClock, Work
from dsv4kv.replay.data.cache import KeptWindows, RealData, SharedBlocks
from dsv4kv.replay.data.check import KINDS, ReuseCheck
from dsv4kv.serve import inputs
from dsv4kv.traces.request import Request
from tests.examples import examples
from tests.replay.scenes import random_requests, replay, request, small_config

STRATEGIES = ("full", "periodic:512", "zero", "zero:bounded", "ends", "ends+junctions")
REAL: dict[str, Any] = {
    "workload__data": "real",
    "measure__verify_every": 1,
    "scheduler__step_tokens": 300,
    "scheduler__max_requests": 5,
    "scheduler__paused_share": 0.0,
    "cache__num_checkpoints": 4,
    "cache__num_blocks": 14,
    "workload__arrivals": "closed",
    "workload__concurrency": 5,
    "model__layers": [2, 3],
}


def tight_requests() -> list[Request]:
    """Requests for which blocks and checkpoints are evicted; one is paused and starts again."""
    return random_requests(79, 9, 6, (30, 40))


@pytest.fixture(autouse=True, scope="module")
def few_distinct_tokens() -> Iterator[None]:
    with patch.object(inputs, "_DISTINCT_TOKENS", 521):
        yield


class ModelClock(MeasuredClock):
    """Has the work done and takes the model's time for it."""

    def work(self, work: Work) -> None:
        self._charge(work)
        VirtualClock.work(self, work)

    _duration = VirtualClock._duration


def real_data(made: Replay) -> RealData:
    assert made.data is not None
    return made.data


def told(made: Replay) -> tuple[Any, ...]:
    """Everything that was decided, and when."""
    scheduler, outcome = made.scheduler, made.outcome
    prompts = scheduler.prompts
    return (
        (outcome.samples_ns, outcome.rejected, outcome.pauses, outcome.evictions),
        (outcome.peak_blocks, outcome.peak_requests, outcome.peak_checkpoints),
        (scheduler.computed_tokens, scheduler.again_tokens, scheduler.deferrals),
        (scheduler.decoders.drafted, scheduler.decoders.rolled_back),
        (prompts.tally.saved_tokens, prompts.tally.found_blocks, prompts.tally.losses),
        (prompts.checkpoints.written, prompts.checkpoints.evicted, scheduler.ledger.cached),
    )


@st.composite
def scenes(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    block_tokens = draw(st.sampled_from((128, 256, 512)))
    longest = 8 * 128 // block_tokens  # of a prompt and its output, at least
    return draw(st.integers(0, 10**6)), REAL | {
        "prefix__strategy": draw(st.sampled_from(STRATEGIES)),
        "prefix__defer": draw(st.booleans()),
        "prefix__policy": draw(st.sampled_from(("lru", "sieve", "arc"))),
        "cache__block_tokens": block_tokens,
        "cache__num_blocks": longest + draw(st.integers(0, 5)),
        "cache__num_checkpoints": draw(st.integers(0, 5)),
        "scheduler__paused_share": draw(st.sampled_from((0.0, 0.3))),
        "scheduler__speculative__draft_tokens": draw(st.sampled_from((0, 0, 3))),
        "workload__arrivals": draw(st.sampled_from(("trace", "closed"))),
        "measure__verify_every": draw(st.integers(1, 5)),
    }


@examples(15)
@given(scenes())
def test_real_bytes_are_those_of_a_run_without_reuse_under_the_same_decisions(
    scene: tuple[int, dict[str, Any]],
) -> None:
    seed, chosen = scene
    requests = random_requests(seed, 7, 6, (0, 1, 3, 30))
    with patch("dsv4kv.replay.build.MeasuredClock", ModelClock):
        real = replay(requests, **chosen)
    counted = replay(requests, **(chosen | {"workload__data": "none"}))
    check = real_data(real).parts.check
    assert check.failures == []
    assert real_data(real).find_problem(real.scheduler.ledger.cached) is None
    assert check.by_kind.total() == check.by_operation.total() > 0
    assert told(real) == told(counted)


@pytest.mark.parametrize(
    ("model", "layers"), [("v4.1-flash", [0, 2, 3, 20, 21]), ("v3.2", [3, 4])]
)
def test_other_models_have_the_bytes_of_a_run_without_reuse(model: str, layers: list[int]) -> None:
    chosen = {"model__preset": model, "model__layers": layers, "cache__num_blocks": 40}
    made = replay(tight_requests(), **REAL | chosen)
    data = real_data(made)
    assert data.parts.check.failures == []
    assert data.find_problem(made.scheduler.ledger.cached) is None
    assert data.parts.check.by_kind.total() > 0
    assert made.scheduler.prompts.tally.saved_tokens > 0


def check_counts(made: Replay) -> None:
    """Blocks, checkpoints and slots of the real cache against the scheduler's."""
    ledger, data = made.scheduler.ledger, real_data(made)
    held = data.parts.manager.num_held_blocks
    assert data.parts.shared.num_blocks == ledger.shared + ledger.cached
    assert held <= ledger.total - ledger.free + data.rules.spare_blocks
    assert len(data.parts.windows) == len(made.scheduler.prompts.checkpoints)
    assert len(data._running) == made.scheduler.in_slots


@pytest.mark.parametrize("strategy", ["ends+junctions", "zero:bounded"])
def test_after_every_turn_the_cache_holds_what_the_scheduler_counts(strategy: str) -> None:
    config = small_config(**REAL | {"prefix__strategy": strategy, "measure__verify_every": 0})
    made = build_replay(config, tight_requests())
    while made.scheduler.turn():
        check_counts(made)
    assert made.outcome.pauses
    assert made.outcome.evictions
    assert made.scheduler.ledger.evicted


@pytest.mark.parametrize("strategy", ["zero", "zero:bounded", "ends"])
def test_a_request_that_fills_the_pool_can_compute_again_what_it_found(strategy: str) -> None:
    same = [request(range(1, 15), output=1), request(range(1, 15), output=1)]
    chosen = {"prefix__strategy": strategy, "scheduler__step_tokens": 2048}
    if strategy == "ends":  # the only checkpoint is gone: everything is computed again
        chosen["cache__num_checkpoints"] = 0
    made = replay(same, **REAL | chosen)
    assert made.scheduler.prompts.tally.found_blocks == 13
    assert made.scheduler.computed_tokens > 14 * 128 + 128
    assert real_data(made).find_problem(made.scheduler.ledger.cached) is None


def test_every_kind_of_reuse_is_compared() -> None:
    bounded = replay(
        random_requests(3, 8, 8, (4,)),
        **REAL | {"prefix__strategy": "zero:bounded", "cache__block_tokens": 256},
    )
    assert real_data(bounded).parts.check.by_kind.keys() >= {"shared", "copied"}
    tight = replay(tight_requests(), **REAL)
    assert real_data(tight).parts.check.by_kind.keys() == set(KINDS) - {"copied"}
    for made in (bounded, tight):
        assert real_data(made).parts.check.failures == []


def test_nothing_is_compared_where_nothing_is_asked_for() -> None:
    made = replay(random_requests(3, 3), **REAL | {"measure__verify_every": 0})
    assert not real_data(made).parts.check.by_kind


# ---- that the check can fail --------------------------------------------------------------------


def take_another_block() -> Any:
    """A prefix is found in the blocks of another."""
    right = SharedBlocks.blocks

    def blocks(self: SharedBlocks, keys: Any) -> Any:
        known = np.array(list(self._blocks), dtype=np.int64)
        return right(self, np.resize(known[::-1], len(keys)))

    return patch.object(SharedBlocks, "blocks", blocks)


def restore_another_checkpoint() -> Any:
    def number(self: KeptWindows, key: int) -> int:
        return next((n for k, n in self._numbers.items() if k != key), self._numbers[key])

    return patch.object(KeptWindows, "number", number)


def restore_nothing() -> Any:
    return patch.object(CheckpointPool, "restore", lambda self, checkpoint, slot: None)


def copy_no_tail() -> Any:
    return patch.object(load_backend("cpu"), "page_copy", lambda store, sources, targets: None)


def keep_what_was_computed_again() -> Any:
    """A truncated window's entries stay where the found ones were."""
    return patch.object(SharedBlocks, "share", lambda self, slot, keys, tokens: None)


DEFECTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "wrong block": (take_another_block, {}),
    "wrong checkpoint": (restore_another_checkpoint, {}),
    "no checkpoint": (restore_nothing, {}),
    "no tail": (
        copy_no_tail,
        {"prefix__strategy": "zero:bounded", "cache__block_tokens": 256},
    ),
    "found blocks overwritten": (
        keep_what_was_computed_again,
        {"prefix__strategy": "zero:bounded"},
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_reuse_that_is_broken_is_found(name: str) -> None:
    defect, chosen = DEFECTS[name]
    with defect():
        made = replay(
            random_requests(3, 8, 6, (4, 20)), **REAL | {"cache__num_blocks": 20} | chosen
        )
    problem = real_data(made).find_problem(made.scheduler.ledger.cached)
    assert problem is not None
    assert "gathers differ from a run without reuse" in problem
    assert "of request" in problem


def test_blocks_that_nobody_counts_are_found() -> None:
    def forget(self: RealData, keys: Any) -> None:
        self.parts.windows.settle()

    with patch.object(RealData, "forget", forget):
        made = replay(tight_requests(), **REAL | {"measure__verify_every": 0})
    problem = real_data(made).find_problem(made.scheduler.ledger.cached)
    assert problem is not None
    assert re.search(r"^\d+ blocks are held, .* and the scheduler counts \d+\.$", problem)


# ---- time ---------------------------------------------------------------------------------------


def test_the_cache_takes_what_was_measured_and_the_rest_what_the_model_says() -> None:
    made = replay(random_requests(5, 4, 4, (3,)), **REAL)
    data, done = real_data(made), made.scheduler.clock.done
    measured_ns = sum(sum(times.measured_ns) for times in data.times.by_kind.values())
    assert measured_ns <= data.times.total_ns
    rates = made.rates
    assert rates is not None
    modelled_s = (
        done.steps * rates.overhead_s
        + done.weight_bytes / rates.bytes_per_s
        + done.operations / rates.operations_per_s
    )
    expected_s = data.times.total_ns / 1e9 + modelled_s + made.scheduler.clock.idle_s
    assert made.scheduler.clock.now_s == pytest.approx(expected_s, abs=1e-3)  # the last release
    steps = [len(times.measured_ns) for times in data.times.by_kind.values()]
    assert sum(steps) == done.steps
    modelled_ns = sum(sum(times.modelled_ns) for times in data.times.by_kind.values())
    assert modelled_ns == pytest.approx(done.cache_bytes / rates.bytes_per_s * 1e9, abs=done.steps)


def test_comparing_is_not_part_of_the_time() -> None:
    now_ns, hour_ns = count(step=1000), 3600 * 10**9
    passed_ns = 0

    def slowly(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal passed_ns
            passed_ns += hour_ns
            return right(*arguments)

        return call

    slow = ("choose", "window_gathered", "entries_gathered")
    with ExitStack() as patches:
        clock = lambda: next(now_ns) + passed_ns  # noqa: E731
        patches.enter_context(patch.object(recorder, "perf_counter_ns", clock))
        for name in slow:
            method = slowly(getattr(ReuseCheck, name))
            patches.enter_context(patch.object(ReuseCheck, name, method))
        made = replay(random_requests(5, 2, 2, (3,)), **REAL)
    assert passed_ns > 5 * hour_ns
    assert 0 < real_data(made).times.total_ns < hour_ns


# ---- refusals -----------------------------------------------------------------------------------


def test_data_that_the_machine_cannot_hold_is_refused_before_it_is_allocated() -> None:
    config = small_config(**REAL | {"cache__num_blocks": 10**9})
    with pytest.raises(ConfigError, match=r"needs .* TiB and the machine has 16\.0 GiB: lower"):
        build_replay(config, random_requests(3, 3), machine_bytes=16 << 30)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"cache__state": "online"}, "cannot be compared with a run without reuse: use 'ring'"),
        ({"workload__data": "some"}, "workload.data"),
    ],
)
def test_what_has_no_data_is_refused(chosen: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_replay(small_config(**REAL | chosen), random_requests(3, 3))
