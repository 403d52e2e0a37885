"""What every engine's rules must keep to."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import ENGINES, find_engine
from tests.engines.sizing.deployments import GIB, deployments

OTHERS = [name for name in ENGINES if name != "dsv4kv"]
VLLM = [name for name in ENGINES if name.startswith("vllm")]
TOKENS = st.integers(1, 2**20)
FLIGHT = st.integers(1, 40_000)


@pytest.mark.parametrize("name", OTHERS)
@given(deployments(), TOKENS, TOKENS, FLIGHT, FLIGHT)
def test_a_request_never_takes_less_for_more_tokens_or_more_in_flight(
    name: str, deployment: Deployment, tokens: int, more: int, flight: int, further: int
) -> None:
    engine = find_engine(name)
    small = engine.request_bytes(deployment, tokens, in_flight=flight)
    assert small <= engine.request_bytes(deployment, tokens + more, in_flight=flight)
    assert small <= engine.request_bytes(deployment, tokens, in_flight=flight + further)


@pytest.mark.parametrize("name", OTHERS)
@given(deployments(), st.integers(0, 300 * GIB), st.integers(0, 8 * GIB))
def test_more_memory_never_holds_less(
    name: str, deployment: Deployment, memory: int, more: int
) -> None:
    engine = find_engine(name)
    small, large = (engine.capacity(deployment, size) for size in (memory, memory + more))
    assert small.units <= large.units
    assert (small.printed_tokens or 0) <= (large.printed_tokens or 0)
    assert small.cache_bytes <= memory


@pytest.mark.parametrize("name", VLLM)
@given(deployments(), st.integers(1, 4096))
def test_costs_of_the_pools_add_up_to_the_blocks_of_a_request(
    name: str, deployment: Deployment, blocks: int
) -> None:
    tokens = 256 * blocks
    deployment = replace(deployment, max_context_tokens=tokens)
    engine = find_engine(name)
    costs = engine.costs(deployment)
    per_token = sum((cost.marginal_bytes + cost.padding_bytes for cost in costs), Fraction(0))
    fixed = sum(cost.fixed_bytes + cost.in_flight_bytes for cost in costs)
    assert fixed + per_token * tokens == engine.request_bytes(
        deployment, tokens, in_flight=deployment.in_flight_tokens
    )
