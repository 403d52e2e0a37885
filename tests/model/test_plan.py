"""A plan predicts, to the byte and pool by pool, what its cache allocates."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import CachePlan, bytes_per_token, cached_bytes, choose_formats, plan_cache
from dsv4kv.model.presets import load_model
from tests.examples import examples
from tests.model.layouts import schemas_of

FLASH = load_model("v4-flash")
SHARINGS = st.sampled_from(["model", "type", "layer"])
FORMATS = st.builds(
    choose_formats,
    st.just(FLASH),
    st.sampled_from(["fp8_ds_mla", "bf16", "fp8", "fp4"]),
    st.sampled_from(["fp8_ds_mla", "bf16", "fp8", "fp8_group32"]),
    st.sampled_from(["mxfp4", "fp8", "bf16"]),
)


def plan(**changes: Any) -> CachePlan:
    sizes: dict[str, Any] = {"max_context_tokens": 1000, "num_slots": 2} | changes
    return plan_cache(sizes.pop("config", FLASH), **sizes)


@st.composite
def geometries(draw: st.DrawFn) -> CachePlan:
    """Small caches of every kind that can hold data."""
    state, drafts = draw(st.sampled_from([("ring", 0), ("ring", 3), ("online", 0)]))
    return plan(
        layers=draw(st.sets(st.integers(0, 7), min_size=1, max_size=4)),
        max_context_tokens=draw(st.integers(1, 1500)),
        num_slots=draw(st.integers(1, 3)),
        num_blocks=draw(st.none() | st.integers(1, 5)),
        formats=draw(FORMATS),
        block_tokens=128 * draw(st.integers(1, 3)),
        sharing=draw(SHARINGS),
        state=state,
        draft_tokens=drafts,
    )


@examples(150)
@given(geometries())
def test_every_pool_takes_the_bytes_that_were_planned(small: CachePlan) -> None:
    predicted = {
        (pool.name, pool.layer_type, pool.unit_bytes): pool.total_bytes for pool in small.pools
    }
    manager = KVCacheManager(small)
    assert manager.memory_by_pool() == predicted
    assert sum(predicted.values()) == small.total_bytes


@pytest.mark.parametrize(
    ("size", "what"),
    [("num_blocks", "blocks"), ("num_slots", "slots"), ("max_context_tokens", "context")],
)
@pytest.mark.parametrize("value", [0, -1])
def test_an_explicit_zero_is_refused_not_replaced(size: str, what: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{what} is {value}: a cache needs at least 1"):
        plan(**{size: value})


MILLION = 1_048_576


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("v4-flash", Fraction("3514.25")),  # 21 · (584 + 68)/4 + 20 · 584/128
        ("v4-pro", Fraction("5031.4375")),  # 30 · (584 + 68)/4 + 31 · 584/128
        ("v4.1-flash", Fraction(890)),  # 3 · (288 + 68)/2 + (288 + 68)
        ("v3.2", Fraction(61 * (656 + 132))),
    ],
)
def test_a_token_of_context_costs_its_published_bytes(model: str, expected: Fraction) -> None:
    assert bytes_per_token(schemas_of(model)) == expected


@pytest.mark.parametrize(("model", "percent"), [("v4-pro", 10.48), ("v4-flash", 7.32)])
def test_the_published_share_of_v32_holds_for_fp8_entries_and_4_bit_keys(
    model: str, percent: float
) -> None:
    baseline = cached_bytes(schemas_of("v3.2", "fp8_ds_mla", "fp8"), MILLION)
    ours = cached_bytes(schemas_of(model, "fp8_ds_mla", "mxfp4"), MILLION)
    assert round(100 * ours / baseline, 2) == percent


@pytest.mark.parametrize(("model", "expected"), [("v4-flash", 12_206_080), ("v4-pro", 18_710_528)])
def test_a_request_holds_its_published_bytes_of_compressor_state(
    model: str, expected: int
) -> None:
    schemas = schemas_of(model)
    assert sum(schema.state_bytes for schema in schemas) == expected
