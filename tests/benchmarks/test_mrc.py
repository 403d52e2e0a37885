"""All capacities of a trace in one pass, beside a list in order of use at a single one."""

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest

from dsv4kv.engines.prefix import Pool, run_rule
from dsv4kv.model.presets import load_model
from dsv4kv.prefix.paths import PathTable, find_reuse, number_prompts
from dsv4kv.replay.mrc.curves import hit_curve
from dsv4kv.traces import read_trace
from dsv4kv.traces.collect import collect_paths
from tests.benchmarks.medians import PLAIN, Measure
from tests.prefix.traces import CONVERSATION, conversation, needs_conversation

ROUNDS = 5
POOL_TOKENS = 9_358_848
GROUP = "hits of the conversation trace"

pytestmark = needs_conversation


def serve_plainly(paths: list[list[int]], capacity: int) -> int:
    """Hits of one capacity, block by block."""
    order: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path in paths:
        for block in path:
            if block not in order:
                break
            hits += 1
        for block in reversed(path):
            order[block] = None
            order.move_to_end(block)
        while len(order) > capacity:
            order.popitem(last=False)
    return hits


def curve_of(table: PathTable) -> int:
    return int(np.interp(18_279, *hit_curve(find_reuse(table, 512))))


def plain_paths() -> list[list[int]]:
    numbered = number_prompts(conversation(), 512, whole_blocks=False)
    return [numbered.path(request) for request in range(len(numbered))]


def test_every_capacity_in_one_pass(measure: Measure) -> None:
    measure(GROUP, "every capacity", partial(curve_of, conversation()), rounds=ROUNDS)


def test_one_capacity_block_by_block(measure: Measure) -> None:
    paths = plain_paths()
    measure(GROUP, PLAIN, partial(serve_plainly, paths, 18_279), rounds=ROUNDS)
    assert serve_plainly(paths, 18_279) == curve_of(conversation())


def test_reading_the_trace_into_arrays(measure: Measure) -> None:
    measure("reading", "arrays", lambda: collect_paths(read_trace(CONVERSATION)), rounds=ROUNDS)


@pytest.mark.parametrize("grain", [64, 256])
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_engines_rule(measure: Measure, name: str, grain: int) -> None:
    pool = Pool(conversation(), POOL_TOKENS, grain, load_model("v4-flash"))
    call = partial(run_rule, name, pool)
    measure(f"rules, blocks of {grain} tokens", name, call, rounds=ROUNDS)
