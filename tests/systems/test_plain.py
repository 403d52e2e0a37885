"""Pools, slots, hashes and routing give what their plain re-statements give; so does the model."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dsv4kv.bench.block_system import RoutingStore
from dsv4kv.bench.slot_system import SlotAllocator
from dsv4kv.bench.systems import _FACTOR
from dsv4kv.cache.blocks import BlockPool
from dsv4kv.errors import NotOwner
from tests.systems.small import MODEL

# ---- told in the plainest way -------------------------------------------------------------------


class PlainRouting:
    """Experts of the tokens of every block, stored token by token."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks: dict[int, dict[int, NDArray[np.int16]]] = {}

    def store(self, ids: Sequence[int], flat: NDArray[np.int16]) -> None:
        for number in range(len(flat)):
            block, place = ids[number // self.block_tokens], number % self.block_tokens
            self.blocks.setdefault(block, {})[place] = flat[number]

    def reconstruct(self, ids: Sequence[int], total: int) -> NDArray[np.int16] | None:
        rows = []
        for number in range(total):
            row = self.blocks.get(ids[number // self.block_tokens], {})
            if number % self.block_tokens not in row:
                return None
            rows.append(row[number % self.block_tokens])
        return np.stack(rows)


class PlainSlots:
    """Free slots as the bits of a whole number; nothing is checked."""

    def __init__(self, max_slots: int) -> None:
        self.mask = (1 << max_slots) - 1
        self.versions = [0] * max_slots

    def alloc(self) -> int:
        if not self.mask:
            return -1
        slot = (self.mask & -self.mask).bit_length() - 1
        self.mask &= ~(1 << slot)
        self.versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        self.mask |= 1 << slot

    def occupy(self, slot: int) -> None:
        self.mask &= ~(1 << slot)

    def is_free(self, slot: int) -> bool:
        return bool(self.mask >> slot & 1)

    def version(self, slot: int) -> int:
        return self.versions[slot]


# ---- and compared -------------------------------------------------------------------------------


SEEDS = pytest.mark.parametrize("seed", range(20))


@SEEDS
def test_slots_and_versions_are_the_same(seed: int) -> None:
    draw, slots, plain = Random(seed), SlotAllocator(9), PlainSlots(9)
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
def test_experts_of_blocks_are_the_same(seed: int) -> None:
    draw, pool, plain = Random(seed), BlockPool(6), PlainRouting(4)
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
