"""Host memory behind a capacity: the curve further right, and what a replay with a tier finds."""

from dataclasses import replace
from math import ceil

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.replay.mrc.curves import Question, measure_trace
from dsv4kv.replay.mrc.strategies import prefix_costs
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request
from tests.replay.scenes import BLOCK, random_requests, replay

MODEL = load_model("v4-flash")
TOKEN_BYTES = prefix_costs(MODEL).token_bytes
FULL_BLOCK_BYTES = 328_512
"""A block of three layers of Flash with the windows and states that ``full`` keeps beside it."""


def parting(count: int) -> list[Request]:
    """Prompts of whole blocks, each of which ends with a block of its own."""
    return [
        replace(
            each,
            input_tokens=BLOCK * (1 + len(each.prefix_hashes)),
            output_tokens=1,
            prefix_hashes=(*each.prefix_hashes, -number),
        )
        for number, each in enumerate(random_requests(5, count, 8), start=1)
    ]


def bytes_of(blocks: int) -> int:
    return ceil(blocks * BLOCK * TOKEN_BYTES)


@pytest.mark.parametrize("blocks", [40, 90])
def test_a_replay_with_a_tier_saves_what_the_curve_finds_at_its_size(blocks: int) -> None:
    requests = parting(150)
    question = Question(MODEL, capacities_tokens=(16 * BLOCK,), host_bytes=(bytes_of(blocks),))
    answer = measure_trace(collect_paths(requests), question)
    (behind,) = answer.behind
    served = replay(
        requests,
        workload__arrivals="closed",
        workload__concurrency=1,
        prefix__strategy="full",
        cache__num_blocks=16,
        tiers__host__capacity_bytes=blocks * FULL_BLOCK_BYTES,
        tiers__host__read_gbps=10**6,
        tiers__host__write_gbps=10**6,
        tiers__host__latency_us=0,
        tiers__compare=False,
    )
    tally = served.prompts.tally
    assert served.tiers
    assert served.tiers.stored.objects.context_bytes == FULL_BLOCK_BYTES
    assert behind.host_tokens == blocks * BLOCK
    assert tally.saved_tokens == round(behind.token_hits * answer.input_tokens)
    assert behind.token_hits > behind.gpu_hits > 0


def test_host_memory_is_behind_a_capacity_that_is_named() -> None:
    with pytest.raises(ConfigError, match="say how large that is, --capacity"):
        measure_trace(collect_paths(parting(3)), Question(MODEL, host_bytes=(10**12,)))
