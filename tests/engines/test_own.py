"""The dsv4kv cache as an engine costs, to the byte, what its manager allocates."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.dsv4kv.sizes import OwnEngine
from dsv4kv.model.plan import Sharing, choose_formats
from dsv4kv.model.presets import load_model
from tests.examples import examples

FLASH = load_model("v4-flash")
SHARINGS = st.sampled_from(["model", "type", "layer"])
MODELS = ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"]


def deployment(model: str = "v4-flash", **changes: Any) -> Deployment:
    config = load_model(model)
    sizes: dict[str, Any] = {"max_context_tokens": 1000, "in_flight_tokens": 512} | changes
    return Deployment(model=config, formats=sizes.pop("formats", choose_formats(config)), **sizes)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Small caches of every kind that can hold data."""
    online, drafts = draw(st.sampled_from([(False, 0), (False, 3), (True, 0)]))
    formats = choose_formats(
        FLASH,
        draw(st.sampled_from(["fp8_ds_mla", "bf16", "fp8", "fp4"])),
        draw(st.sampled_from(["fp8_ds_mla", "bf16", "fp8", "fp8_group32"])),
        draw(st.sampled_from(["mxfp4", "fp8", "bf16"])),
    )
    return deployment(
        layers=tuple(sorted(draw(st.sets(st.integers(0, 7), min_size=1, max_size=4)))),
        max_context_tokens=draw(st.integers(1, 1500)),
        formats=formats,
        block_tokens=128 * draw(st.integers(1, 3)),
        online_state=online,
        draft_tokens=drafts,
        draft_layers=draw(st.integers(0, 3)),
    )


@examples(200)
@given(deployments(), st.integers(1, 3), SHARINGS)
def test_requests_cost_what_the_manager_allocates(
    small: Deployment, requests: int, sharing: Sharing
) -> None:
    engine = OwnEngine(sharing=sharing)
    manager = KVCacheManager(engine.plan(small, requests))
    one = engine.request_bytes(small, small.max_context_tokens, in_flight=512)
    assert engine.shared_bytes(small) + requests * one == sum(manager.memory_by_pool().values())


@given(st.sampled_from(MODELS), st.integers(1, 2**20), st.integers(1, 500), SHARINGS)
def test_requests_cost_what_is_planned_for_whole_models(
    model: str, context: int, requests: int, sharing: Sharing
) -> None:
    engine, whole = OwnEngine(sharing=sharing), deployment(model, max_context_tokens=context)
    planned = engine.plan(whole, requests).total_bytes
    assert requests * engine.request_bytes(whole, context, in_flight=1) == planned


@given(st.sampled_from(MODELS), st.integers(1, 64), st.sampled_from([128, 256, 512]))
def test_costs_add_up_to_a_request_of_whole_blocks(model: str, blocks: int, size: int) -> None:
    context = blocks * size
    whole = deployment(model, max_context_tokens=context, block_tokens=size)
    engine = OwnEngine()
    costs = engine.costs(whole)
    fixed = sum(cost.fixed_bytes for cost in costs)
    per_token = sum((cost.marginal_bytes + cost.padding_bytes for cost in costs), Fraction(0))
    assert fixed + context * per_token == engine.request_bytes(whole, context, in_flight=1)
