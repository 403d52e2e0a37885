"""Host memory behind the GPUs: what a replay with a tier finds is the curve at its capacity."""

from dataclasses import replace

import pytest

from dsv4kv.model.presets import load_model
from dsv4kv.replay.mrc import Question, measure_trace
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request
from tests.replay.scenes import BLOCK, random_requests, replay

MODEL = load_model("v4-flash")
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


@pytest.mark.parametrize("blocks", [40, 90])
def test_a_replay_with_a_tier_saves_what_the_curve_finds_at_its_size(blocks: int) -> None:
    requests = parting(150)
    question = Question(MODEL, capacities_tokens=(16 * BLOCK, blocks * BLOCK))
    answer = measure_trace(collect_paths(requests), question)
    gpu, host, _ = answer.points
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
    assert tally.saved_tokens == round(host.token_hits * answer.input_tokens)
    assert host.token_hits > gpu.token_hits > 0
