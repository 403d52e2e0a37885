"""What a prefix is made of: the families of every model, and their bytes in a live cache."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.objects import CacheBytes, Objects
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.plan import CachePlan, Family, Kept, choose_formats, families_in, plan_cache
from dsv4kv.model.presets import load_model, preset_names
from tests.bench.tiers.world import on_twin

MODELS = ("v4-flash", "v4-pro")
HICACHE_PAGES = {  # of SGLang 0.5.23's host pools, by model
    "deepseek_v4_c4": (786_240, 1_123_200),
    "deepseek_v4_c4_indexer": (177_408, 253_440),
    "deepseek_v4_c128": (34_560, 53_568),
    "deepseek_v4_c4_state": (1_376_256, 1_966_080),
    "deepseek_v4_c4_indexer_state": (344_064, 491_520),
}


def plan(model: str = "v4-flash", **changes: Any) -> CachePlan:
    sizes: dict[str, Any] = {"max_context_tokens": 600, "num_slots": 3, "block_tokens": 256}
    return plan_cache(load_model(model), **(sizes | changes))


def by_name(of: CachePlan) -> dict[str, Family]:
    return {family.name: family for family in families_in(of.schemas)}


@pytest.mark.parametrize("model", MODELS)
def test_objects_of_a_page_have_the_bytes_of_sglangs_host_pools(model: str) -> None:
    """With 8-bit indexer keys; states are rings of 8 rows."""
    found = by_name(plan(model, formats=choose_formats(load_model(model), indexer="fp8")))
    for name in ("csa", "csa_indexer", "hca", "csa_state", "csa_indexer_state"):
        pool = "deepseek_v4_" + name.replace("csa", "c4").replace("hca", "c128")
        assert found[name].object_bytes == HICACHE_PAGES[pool][MODELS.index(model)], name


@pytest.mark.parametrize("model", preset_names())
@pytest.mark.parametrize("state", ["ring", "online"])
def test_every_byte_of_a_block_and_of_a_slot_is_in_one_family(model: str, state: str) -> None:
    cache = plan(model, state=state, draft_layers=True)
    found = families_in(cache.schemas)
    pages = sum(f.object_bytes for f in found if f.kept is Kept.PAGES)
    rest = sum(f.object_bytes for f in found if f.kept is not Kept.PAGES)
    assert pages == sum(schema.block_bytes for schema in cache.schemas)
    assert rest == sum(schema.slot_bytes for schema in cache.schemas)


def test_what_a_resume_point_needs() -> None:
    found = by_name(plan())
    needed = {
        n: {name: count for name, family in found.items() if (count := family.objects(n))}
        for n in (0, 1, 4, 128, 256, 260, 384)
    }
    tail = {"window": 1, "csa_state": 1, "csa_indexer_state": 1}
    assert needed[0] == {}
    assert needed[1] == tail | {"hca_state": 1}
    assert needed[4] == tail | {"hca_state": 1, "csa": 1, "csa_indexer": 1}
    assert needed[128] == needed[256] == tail | {"csa": 1, "csa_indexer": 1, "hca": 1}
    assert needed[260] == tail | {"hca_state": 1, "csa": 2, "csa_indexer": 2, "hca": 1}
    assert needed[384] == tail | {"csa": 2, "csa_indexer": 2, "hca": 2}


LAYERS = {"v4-flash": (1, 2, 3, 4, 5, 43), "v4.1-flash": (0, 2, 8, 20), "v3.2": (0, 1)}


@cache
def filled(model: str) -> KVCacheManager:
    """A cache of a few layers whose every byte is drawn."""
    small = plan(model, layers=LAYERS[model], draft_layers=model == "v4-flash")
    manager = KVCacheManager(small)
    generator = torch.Generator().manual_seed(0)
    for tensor in pools(manager):
        tensor.view(torch.uint8).random_(0, 256, generator=generator)
    return manager


def pools(manager: KVCacheManager) -> list[torch.Tensor]:
    """Every tensor that holds a request's data."""
    stores = [s for pool in manager.pools.values() for s in (pool.main, pool.indexer) if s]
    rings = [ring for states in manager.states.values() for ring in states.windows]
    states = [tensor for each in manager.states.values() for tensor in each.states()]
    return [store.pages for store in [*stores, *rings]] + states


def room(family: Family, count: int) -> Objects:
    return np.zeros((count, *family.object_shape), dtype=np.uint8)


def units(manager: KVCacheManager, family: Family) -> int:
    """Blocks, or slots, that a family's objects are in."""
    paged = family.kept is Kept.PAGES
    return manager.tables[0].allocator.num_blocks if paged else manager.plan.num_slots


def by_layer(family: Family, ids: Ids) -> Ids:
    return np.tile(ids, (len(family.layers), 1))


@pytest.mark.parametrize("model", LAYERS)
@given(data=st.data())
def test_objects_are_the_pools_rows_layer_by_layer(model: str, data: st.DataObject) -> None:
    manager = filled(model)
    objects = CacheBytes(manager)
    family = data.draw(st.sampled_from(list(objects.families.values())))
    ids = np.array(data.draw(st.lists(st.integers(0, units(manager, family) - 1))), dtype=np.int64)
    found = room(family, len(ids))
    objects.take(family, by_layer(family, ids), found)
    expected = [[piece_of(manager, family, layer, int(i)) for layer in family.layers] for i in ids]
    assert found.tobytes() == b"".join(piece for each in expected for piece in each)
    with on_twin(objects):
        again = room(family, len(ids))
        objects.take(family, by_layer(family, ids), again)
    assert again.tobytes() == found.tobytes()


def piece_of(manager: KVCacheManager, family: Family, layer: int, unit: int) -> bytes:
    """A layer's bytes in an object, read from its pool in the plainest way."""
    if family.part in ("main", "indexer"):
        store = getattr(manager.pools[layer], family.part)
        return bytes(store.pages[unit].numpy())
    schemas = manager.plan.schemas
    attn = next(s.layer.attn for s in schemas if s.layer.layer_idx == layer)
    having = [
        schema.layer.layer_idx
        for schema in schemas
        if schema.layer.attn is attn
        and (family.part == "window" or getattr(schema, family.part + "_shape"))
    ]
    place, states = having.index(layer), manager.states[attn]
    if family.part == "window":
        return bytes(states.windows[place].pages[unit].numpy())
    return bytes(getattr(states, family.part)[place, unit].numpy().tobytes())
