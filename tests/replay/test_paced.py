"""A replay at a server's pace serves everybody, whatever the pool and however they overlap."""

import random

import pytest

from dsv4kv.engines.names import find_rule
from dsv4kv.model.presets import load_model
from dsv4kv.replay.against import Paced, Span
from dsv4kv.replay.rules import Pool
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request

MODEL = load_model("v4-flash")
RULES = ("vllm", "vllm-v4:semantic", "sglang", "sglang-v4:tail")


def drawn(draw: random.Random) -> tuple[list[Request], list[Span]]:
    """Requests that overlap and generate, and share what they begin with."""
    chains: list[tuple[int, ...]] = [()]
    requests, spans = [], []
    for number in range(40):
        base = draw.choice(chains)
        own = range(1 + 100 * number, 1 + 100 * number + draw.randint(1, 5))
        chains.append((*base[: draw.randint(0, 8)], *own))
        begin_s = number * draw.choice([0.0, 0.1, 2.0])
        first_s = begin_s + draw.choice([0.0, 0.5])
        spans.append(Span(begin_s, first_s, first_s + draw.choice([0.0, 3.0, 30.0])))
        ids, output = chains[-1], draw.choice([0, 1, 300, 4_000])
        requests.append(Request(begin_s, 256 * len(ids) - draw.randint(0, 60), output, ids, 256))
    order = sorted(range(40), key=lambda number: spans[number].begin_s)
    return [requests[number] for number in order], [spans[number] for number in order]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_whoever_fits_is_served_and_the_pool_is_never_too_full(rule: str, at_once: bool) -> None:
    preempted = evicted = 0
    for seed in range(4):
        draw = random.Random(f"{rule} {seed}")
        requests, spans = drawn(draw)
        windows = 320 if rule.startswith("vllm-v4") else 0
        blocks = windows + draw.choice([16, 40, 200]) * (10 if ":tail" in rule else 1)
        pool = Pool(collect_paths(requests), blocks * 256, 256, MODEL, 512)
        looks = [0.5 * step for step in range(200)]
        emptied = [20.25] if seed % 2 else []
        found = Paced(
            pool, find_rule(rule), spans, at_once=at_once, emptied=emptied, looks=looks
        ).run()
        assert len(found.used) == len(looks)
        assert all(0 <= used <= blocks for used in found.used)
        pairs = zip(found.hits, requests, strict=True)
        assert all(0 <= hit < request.input_tokens for hit, request in pairs)
        preempted += len(found.preempted)
        evicted += len(found.evicted)
    assert evicted
    assert preempted or ":" in rule


def test_many_that_wait_beyond_their_time_end_one_after_the_other() -> None:
    requests = [Request(0.0, 2_560, 2, tuple(range(20 * n + 1, 20 * n + 11)), 256)
                for n in range(3_000)]  # fmt: skip
    spans = [Span(0.0, 0.0, 1_000.0), *[Span(1.0, 1.0, 2.0)] * 2_999]
    pool = Pool(collect_paths(requests), 12 * 256, 256, MODEL, 2_560)
    assert Paced(pool, find_rule("sglang"), spans, at_once=True).run().rejected == 0
