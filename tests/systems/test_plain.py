"""Pools, slots, hashes and routing give what their plain re-statements give; so does the model."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.block_system import RoutingStore
from dsv4kv.bench.slot_system import PrefixCacheManager, SlotAllocator
from dsv4kv.bench.systems import _FACTOR
from dsv4kv.cache.blocks import BlockPool
from dsv4kv.errors import NotOwner
from tests.systems import plain as pl
from tests.systems.small import MODEL, insert_row

SEEDS = pytest.mark.parametrize("seed", range(20))


@SEEDS
def test_a_stack_hands_out_the_same_blocks(seed: int) -> None:
    draw, pool, plain = Random(seed), BlockPool(40), pl.PlainAllocator(40)
    held = list[int]()
    for _ in range(200):
        if draw.random() < 0.5 and (count := draw.randint(0, min(5, pool.num_free))):
            ids = pool.acquire(count)
            assert ids.tolist() == plain.acquire(count).tolist()
            held += ids.tolist()
        elif held:
            back = np.array(draw.sample(held, draw.randint(1, min(5, len(held)))))
            pool.release(back)
            plain.release(torch.from_numpy(back))
            held = [block for block in held if block not in back]


@SEEDS
def test_blocks_without_followers_are_cached_found_and_evicted_alike(seed: int) -> None:
    """The plain one knows no chains: each block is one of its own."""
    draw, pool, plain = Random(seed), BlockPool(16), pl.PlainRefCounts(16)
    held = list[tuple[int, int]]()  # ours and theirs, of one hash
    for hash_ in range(1, 200):
        if draw.random() < 0.5 and pool.num_free:
            ours, theirs = pool.acquire(1), plain.allocate(1)
            pool.register(ours, [hash_], [0])
            plain.register(theirs, [hash_])
            held.append((int(ours[0]), int(theirs[0])))
        elif held:
            mine, other = held.pop(draw.randrange(len(held)))
            pool.release(np.array([mine]))
            plain.release(torch.tensor([other]))
        known = [h for h in range(1, 200) if pool.find([h]).size]
        assert known == sorted(plain.blocks)
        assert pool.num_unused == plain.stack.num_free


@SEEDS
def test_slots_and_versions_are_the_same(seed: int) -> None:
    draw, slots, plain = Random(seed), SlotAllocator(9), pl.PlainSlots(9)
    for _ in range(300):
        slot = draw.randrange(9)
        if draw.random() < 0.4:
            assert slots.alloc() == plain.alloc()
        elif plain.is_free(slot):
            with pytest.raises(NotOwner, match="free already"):
                slots.free(slot)
            if draw.random() < 0.5:
                slots.occupy(slot)
                plain.occupy(slot)
        else:
            with pytest.raises(NotOwner, match="held already"):
                slots.occupy(slot)
            slots.free(slot)
            plain.free(slot)
        assert [slots.version(n) for n in range(9)] == plain.versions
        assert slots.free_count == plain.mask.bit_count()
    for slot in (-1, 9):
        with pytest.raises(NotOwner, match=r"there are 0\.\.8"):
            slots.version(slot)


@SEEDS
def test_a_tree_finds_prefixes_of_the_same_length(seed: int) -> None:
    draw, plain = Random(seed), pl.PlainRadix()
    cache = PrefixCacheManager(10**6, lambda _: 1)
    for slot in range(60):
        tokens = draw.choices(range(3), k=draw.randint(1, 12))
        found = cache.find(np.array(tokens, np.int32))
        assert found.length == plain.find(tokens)[0]
        insert_row(cache, np.array(tokens, np.int32), slot, 1)
        plain.insert(tokens, slot, 1)


@SEEDS
def test_experts_of_blocks_are_the_same(seed: int) -> None:
    draw, pool, plain = Random(seed), BlockPool(6), pl.PlainRouting(4)
    store = RoutingStore(pool, 4, 2, 3)
    ids = pool.acquire(6)
    for _ in range(20):
        some = np.array(draw.sample(ids.tolist(), 3))
        flat = np.random.default_rng(seed).integers(0, 99, (draw.randint(1, 12), 2, 3))
        store.store(some, flat.astype(np.int16))
        plain.store(some.tolist(), flat.astype(np.int16))
        total = draw.randint(1, 12)
        ours, theirs = store.reconstruct(some, total), plain.reconstruct(some.tolist(), total)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert np.array_equal(ours, theirs)


TOKENS = st.lists(st.integers(0, 129_279), min_size=1, max_size=40)


@given(TOKENS)
def test_the_history_is_a_plain_recurrence(tokens: list[int]) -> None:
    history, told = 0, []
    for token in tokens:
        history = (_FACTOR * history + token + 1) % 2**64
        told.append(history)
    found = MODEL.compute(np.array(tokens, np.int32), None)
    assert found[:, 0].tolist() == told


def test_hashed_layers_route_by_the_token_alone_and_the_others_by_its_history() -> None:
    words = np.array([5, 6, 5], np.int32)
    experts = MODEL.route(words, MODEL.compute(words, None))
    for number, spec in enumerate(MODEL.layers):
        same = np.array_equal(experts[0, number], experts[2, number])
        assert same == spec.routes_by_id
