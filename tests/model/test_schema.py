"""What a layer stores: pages per block, ring and state per slot (arXiv:2606.19348, section 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, LayerSpec
from dsv4kv.model.plan import LayerCacheSchema, Sharing, StateFormat, build_schema, table_groups
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
