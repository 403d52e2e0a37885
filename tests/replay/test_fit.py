"""GPUs that cannot hold weights and cache are refused, with the fewest that can."""

import re

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.errors import DoesNotFit
from dsv4kv.replay.build import build_replay
from tests.replay.scenes import request, small_config

WHOLE = {
    "model__preset": "v4-pro",
    "model__layers": None,
    "cache__memory_bytes": "100GiB",
    "cache__num_blocks": None,
    "cost__gpu": "h200",
}


def test_the_fewest_gpus_named_fit_and_one_less_does_not() -> None:
    with pytest.raises(DoesNotFit, match="do not fit on 1 GPU of h200: every GPU lacks") as caught:
        build_replay(small_config(**WHOLE, cost__gpus=1), [request([1])])
    fewest = int(re.findall(r"\. ([\d,]+) are the fewest", str(caught.value))[0])
    build_replay(small_config(**WHOLE, cost__gpus=fewest), [request([1])])
    with pytest.raises(DoesNotFit, match=f"{fewest} are the fewest"):
        build_replay(small_config(**WHOLE, cost__gpus=fewest - 1), [request([1])])


def test_weights_are_those_of_budget() -> None:
    found = answer(read_inputs({"model": "v4-pro", "gpus": "16"}))
    made = build_replay(small_config(**WHOLE, cost__gpus=16), [request([1])])
    assert made.parts.weights.held_bytes == pytest.approx(
        found.scenario.weights.total_bytes, abs=2
    )


def test_blocks_of_a_given_number_count_too() -> None:
    blocks = {**WHOLE, "cache__memory_bytes": None, "cache__num_blocks": 10**6}
    with pytest.raises(DoesNotFit, match="GiB of cache do not fit on 8 GPUs"):
        build_replay(small_config(**blocks, cost__gpus=8), [request([1])])


def test_a_bandwidth_is_not_asked_for_its_memory() -> None:
    build_replay(small_config(**WHOLE, cost__gpus=1, cost__bandwidth_gbps=4320), [request([1])])


def test_it_is_a_verdict_as_of_budget() -> None:
    assert DoesNotFit.exit_code == 1
