"""Tables grow by the blocks that the entries of their layers need, whoever shares them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.schema import Sharing, TableGroup, table_groups
from tests.model.layouts import schemas_of

TOKENS = st.integers(0, 2_000_000)
SHARINGS: list[Sharing] = ["model", "type", "layer"]
MODELS = ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"]


def groups_of(model: str, sharing: Sharing) -> dict[str, TableGroup]:
    return {group.name: group for group in table_groups(schemas_of(model), sharing)}


@given(TOKENS)
def test_csa_and_hca_layers_need_the_known_numbers_of_128_token_blocks(tokens: int) -> None:
    groups = groups_of("v4-flash", "type")
    csa, hca = (groups[name].blocks_for(tokens) for name in ("csa", "hca"))
    assert csa == (tokens + 124) >> 7
    assert hca == tokens >> 7
    assert hca <= csa <= hca + 1


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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_layer_with_compressed_kv_is_in_one_group(model: str, sharing: Sharing) -> None:
    schemas = schemas_of(model)
    grouped = [layer for group in table_groups(schemas, sharing) for layer in group.layers]
    assert sorted(grouped) == [schema.layer.layer_idx for schema in schemas if schema.main]


def test_sharing_by_layer_is_a_lane_for_each_layer() -> None:
    group = groups_of("v4-flash", "layer")["hca"]
    assert group.lanes == len(group.layers) == 20
    assert [group.lane_of(layer) for layer in group.layers] == list(range(20))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_layers_without_compressed_kv_need_no_table(sharing: Sharing) -> None:
    assert table_groups(schemas_of("v4-flash", layers=[0, 1]), sharing) == ()
