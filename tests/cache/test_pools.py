"""Rings, states and pages hold what their schema says, and a slot is forgotten completely."""

import math

import pytest
import torch
from torch import Tensor

from dsv4kv.cache.manager import KVCacheManager, PagedKVPool
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import StateFormat
from tests.cache.caches import admit, small_plan

CSA, HCA, SWA = AttentionType.CSA, AttentionType.HCA, AttentionType.SWA
CPU = torch.device("cpu")


def cache(state: StateFormat = "ring") -> KVCacheManager:
    return KVCacheManager(small_plan(state=state))


def scores_of(state: Tensor) -> Tensor:
    """What decides the softmax: scores [layers, slots, …] of a ring, maxima of online state."""
    return state[:, :, 1] if state.dim() == 5 else state[:, :, 0]


def others_of(state: Tensor) -> Tensor:
    return state[:, :, :1] if state.dim() == 5 else state[:, :, 1:]


def check_fresh(state: Tensor) -> None:
    assert bool((scores_of(state) == -math.inf).all())
    assert not others_of(state).any()


@pytest.mark.parametrize("state", ["ring", "online"])
def test_a_new_cache_is_fresh_in_every_slot_and_layer(state: StateFormat) -> None:
    for states in cache(state).states.values():
        for tensor in states.states():
            check_fresh(tensor)


@pytest.mark.parametrize("state", ["ring", "online"])
def test_resetting_forgets_one_slot_in_all_layers_and_no_other(state: StateFormat) -> None:
    for states in cache(state).states.values():
        for tensor in states.states():
            tensor.fill_(7.0)
        states.reset_slot(1)
        for tensor in states.states():
            check_fresh(tensor[:, 1:2])
            assert bool((tensor[:, [0, 2]] == 7.0).all())


@pytest.mark.parametrize("state", ["ring", "online"])
def test_admitting_resets_the_slot(state: StateFormat) -> None:
    manager = cache(state)
    for states in manager.states.values():
        for tensor in states.states():
            tensor.fill_(7.0)
    (slot,) = admit(manager, 1)
    for states in manager.states.values():
        for tensor in states.states():
            check_fresh(tensor[:, slot : slot + 1])


def test_states_have_a_row_for_each_layer_of_their_type() -> None:
    states = cache().states
    csa, hca = states[CSA], states[HCA]
    assert csa.state is not None
    assert csa.indexer_state is not None
    assert hca.state is not None
    assert csa.state.shape == (2, 3, 2, 8, 1024)
    assert csa.indexer_state.shape == (2, 3, 2, 8, 256)
    assert hca.state.shape == (2, 3, 2, 128, 512)
    assert hca.indexer_state is None


def test_online_state_keeps_three_rows_per_hca_layer() -> None:
    states = cache("online").states
    csa, hca = states[CSA].state, states[HCA].state
    assert csa is not None
    assert hca is not None
    assert hca.shape == (2, 3, 3, 512)
    assert csa.dim() == 5  # CSA pools eight rows: its ring is small already


def test_every_layer_has_a_window_and_only_compressing_ones_a_state() -> None:
    states = cache().states
    assert {attn: len(pool.windows) for attn, pool in states.items()} == {SWA: 1, CSA: 2, HCA: 2}
    assert states[SWA].states() == []
    assert all(ring.pages.shape[0] == 3 for pool in states.values() for ring in pool.windows)


def test_pools_tell_the_bytes_they_allocated() -> None:
    manager = cache()
    schemas = {schema.layer.layer_idx: schema for schema in manager.plan.schemas}
    blocks = manager.plan.num_blocks["model"]
    for layer, pool in manager.pools.items():
        assert pool.memory_bytes() == blocks * schemas[layer].block_bytes
    for attn, states in manager.states.items():
        slot_bytes = [s.slot_bytes for s in schemas.values() if s.layer.attn is attn]
        assert states.memory_bytes() == 3 * sum(slot_bytes)


def test_a_layer_without_compressed_kv_has_no_paged_pool() -> None:
    (window_only,) = small_plan(layers=[1]).schemas
    with pytest.raises(ValueError, match="layer 1 owns no compressed KV"):
        PagedKVPool(window_only, 4, CPU)


def test_layers_of_a_stage_keep_their_numbers() -> None:
    manager = KVCacheManager(small_plan(layers=[23, 24], stage=1, stages=2))
    assert set(manager.pools) == {23, 24}
