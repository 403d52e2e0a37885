"""What a run holds, watched step by step."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.build import build_manager, plan_from
from dsv4kv.bench.run import run_case
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.telemetry import MOST_POINTS, MemoryWatch
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.runs.schema import Case
from dsv4kv.runs.telemetry import MemorySeries
from tests.bench.settings import BOOKS, tiny_config
from tests.examples import examples

SHARED = (
    "cache.prefix.index=radix",
    "workload.synthetic.prefix_branches=1",
    "workload.synthetic.prefix_tokens=256",
    "workload.synthetic.hash_block_tokens=128",
    "workload.synthetic.requests=6",
    "workload.synthetic.input.low=300",
    "workload.synthetic.input.high=600",
)


def watch(counts: list[int]) -> MemorySeries:
    """A watch over a cache of 16 blocks of which so many are held at each step."""
    config = tiny_config(BOOKS)
    manager = build_manager(config, plan_from(config), None)
    memory, held = MemoryWatch(manager, Recorder(), None), list[int]()
    for count in counts:
        held += manager.tables[0].allocator.acquire(max(0, count - len(held))).tolist()
        manager.tables[0].allocator.release(np.array(held[count:], dtype=np.int64))
        del held[count:]
        memory.look()
    return memory.series()


def run(*changes: str) -> tuple[Case, MemorySeries]:
    case = run_case({}, tiny_config(BOOKS, *changes), lambda tokens: None)
    assert case.memory is not None
    return case, case.memory


@examples(75)
@given(st.integers(0, 3000))
def test_points_are_never_many_and_never_few(steps: int) -> None:
    series = watch([1] * steps)
    assert len(series.at_ns) == -(-steps // series.stride_steps)
    assert min(steps, MOST_POINTS // 2) <= len(series.at_ns) <= MOST_POINTS
    assert all(before <= after for before, after in pairwise(series.at_ns))


@examples(75)
@given(st.integers(1, 1500), st.integers(0, 2**32))
def test_each_point_is_the_fullest_of_its_steps_so_that_no_peak_is_lost(
    steps: int, seed: int
) -> None:
    blocks = Random(seed).choices(range(17), k=steps)
    series = watch(blocks)
    stride = series.stride_steps
    fullest = [max(blocks[n : n + stride]) for n in range(0, len(blocks), stride)]
    assert series.units[0].held == fullest


@pytest.mark.parametrize(
    ("sharing", "names"),
    [
        ("model", ["blocks", "slots"]),
        ("type", ["csa blocks", "hca blocks", "slots"]),
        ("layer", ["csa blocks", "hca blocks", "slots"]),
    ],
)
def test_what_is_held_never_exceeds_what_there_is_and_its_most_is_the_runs_peak(
    sharing: str, names: list[str]
) -> None:
    case, series = run(f"cache.sharing={sharing}")
    assert [each.name for each in series.units] == names
    assert all(0 <= count <= each.units for each in series.units for count in each.held)
    assert case.totals is not None
    assert len(series.at_ns) == case.totals.steps
    assert series.at_ns[0] == 0
    assert series.at_ns[-1] < case.totals.wall_ns
    held = [each.held for each in series.units if each.name.endswith("blocks")]
    assert max(map(sum, zip(*held, strict=True))) == case.totals.peak_blocks
    assert max(series.units[-1].held) == case.totals.peak_requests


def test_cached_blocks_and_checkpoints_are_counted_where_prefixes_are_shared() -> None:
    settings = *SHARED, "cache.prefix.checkpoints=2"
    _, series = run(*settings)
    counts = {each.name: each for each in series.units}
    assert list(counts) == ["blocks", "slots", "cached blocks", "checkpoints"]
    cached, blocks = counts["cached blocks"].held, counts["blocks"].held
    assert all(some <= every for some, every in zip(cached, blocks, strict=True))
    assert max(cached) > 0
    assert max(counts["checkpoints"].held) == counts["checkpoints"].units == 2
    checkpoint = next(pool for pool in series.pools if pool.name == "checkpoints")
    config = tiny_config(*settings)
    room = CheckpointPool(build_manager(config, plan_from(config), None), 2)
    assert 2 * checkpoint.unit_bytes == sum(mine.nbytes for _, mine in room._pairs())
