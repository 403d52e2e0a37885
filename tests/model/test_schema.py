"""What a layer stores: pages per block, ring and state per slot (arXiv:2606.19348, section 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, LayerSpec
from dsv4kv.model.plan import (
    LayerCacheSchema,
    Sharing,
    StateFormat,
    build_schema,
    table_groups,
)
from dsv4kv.model.presets import load_model
from tests.model.layouts import schemas_of

FLASH = load_model("v4-flash")
SWA = LayerSpec(0, AttentionType.SWA, 0, 0)
CSA = LayerSpec(2, AttentionType.CSA, 4, 2)
HCA = LayerSpec(3, AttentionType.HCA, 128, 3)


def schema(
    spec: LayerSpec, block_tokens: int = 128, state: StateFormat = "ring", draft_tokens: int = 0
) -> LayerCacheSchema:
    return build_schema(
        FLASH, spec, block_tokens=block_tokens, state=state, draft_tokens=draft_tokens
    )


@pytest.mark.parametrize("k", [1, 3])
def test_a_layer_has_its_published_pages_window_and_state(k: int) -> None:
    """Of a block of 128 tokens, and of one three times as large."""
    swa, csa, hca = (schema(spec, 128 * k) for spec in (SWA, CSA, HCA))
    assert [layer.entries_per_block for layer in (swa, csa, hca)] == [0, 32 * k, k]
    assert (csa.indexer is not None, hca.indexer, swa.indexer) == (True, None, None)
    assert (csa.state_shape, csa.indexer_state_shape) == ((2, 8, 1024), (2, 8, 256))
    assert (csa.state_bytes, hca.state_bytes) == (65_536 + 16_384, 524_288)
    assert hca.state_shape == (2, 128, 512)
    if k == 1:
        assert [layer.block_bytes for layer in (swa, csa, hca)] == [0, 19_008 + 32 * 68, 1_152]
    online = [schema(spec, 128 * k, state="online") for spec in (SWA, CSA, HCA)]
    assert online[:2] == [swa, csa]
    assert (online[2].state_shape, online[2].state_bytes) == ((3, 512), 6_144)
    for layer in (swa, csa, hca):
        assert layer.window is not None
        assert layer.window.entries == 128
        assert layer.slot_bytes == layer.window.page_bytes + layer.state_bytes


@given(st.sampled_from([SWA, CSA, HCA]), st.integers(0, 16))
def test_rings_grow_by_the_drafts_that_may_be_rolled_back(spec: LayerSpec, drafts: int) -> None:
    plain, longer = schema(spec), schema(spec, draft_tokens=drafts)
    assert plain.window is not None
    assert longer.window is not None
    assert longer.window.entries == plain.window.entries + drafts
    for before, after in (
        (plain.state_shape, longer.state_shape),
        (plain.indexer_state_shape, longer.indexer_state_shape),
    ):
        assert after == ((2, before[1] + drafts, before[2]) if before else ())


@given(st.integers(-1000, 1000).filter(lambda n: n <= 0 or n % 128))
def test_a_block_that_is_no_multiple_of_128_tokens_is_refused(block_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"block_tokens is {block_tokens}: .* multiple of 128"):
        schema(CSA, block_tokens)


def test_a_v32_layer_holds_one_entry_per_token_and_no_window_or_state() -> None:
    spec = LayerSpec(5, AttentionType.DSA, 1, 5)
    layer = build_schema(load_model("v3.2"), spec)
    assert (layer.entries_per_block, layer.slot_bytes) == (128, 0)
    assert layer.block_bytes == 128 * (656 + 132)


TOKENS = st.integers(0, 2_000_000)
SHARINGS: list[Sharing] = ["model", "type", "layer"]
MODELS = ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"]


@given(TOKENS, st.sampled_from(MODELS), st.sampled_from(SHARINGS), st.integers(1, 16))
def test_a_table_holds_the_blocks_of_its_neediest_layer(
    tokens: int, model: str, sharing: Sharing, k: int
) -> None:
    schemas = {
        schema.layer.layer_idx: schema for schema in schemas_of(model, block_tokens=128 * k)
    }
    for group in table_groups(list(schemas.values()), sharing):
        needs = {
            -(-schemas[layer].entries_after(tokens) // schemas[layer].entries_per_block)
            for layer in group.layers
        }
        assert group.blocks_for(tokens) == max(needs)
