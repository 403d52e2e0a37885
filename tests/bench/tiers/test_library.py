"""Restored is never left, bit for bit; what is not all there is not restored."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.tiers.library import Restored
from dsv4kv.bench.tiers.store import Bytes, Found, MemoryStore, Store
from dsv4kv.errors import OutOfBlocks, StoreFull, StoreUnavailable
from tests.bench.tiers.world import PlainStore, World, on_twin, tokens_of
from tests.examples import examples

LENGTHS = (1, 3, 4, 127, 128, 129, 255, 256, 257)
"""Of 0 tokens nothing is kept."""


@cache
def world(model: str = "v4-flash", *options: str) -> World:
    """Shared between tests: each leaves it as empty as it found it."""
    return World(*options, model=model)


def check_round_trip(
    here: World, length: int, chunks: list[int], end: int, store: Store | None = None
) -> int:
    """Store a prompt, restore it elsewhere, go on beside one that never left: tokens restored."""
    library = here.library(store or PlainStore())
    prefix = library.prefix(tokens_of(1, length))
    stayed, left = here.admit(), here.admit()
    for slot in (stayed, left):
        for stop in sorted({*chunks, length}):
            here.compute(slot, 1, min(stop, length))
            if slot == left:
                library.store_prefix(prefix, slot)
    here.release(left)
    noise, back = here.admit(), here.admit()
    here.compute(noise, 2, 130)
    restored = library.restore(prefix, back)
    here.go_on(back, 1, end)
    here.compute(stayed, 1, end)
    here.decode(stayed, 1, 1)
    assert here.differences(stayed, back) == []
    for slot in (stayed, noise, back):
        here.release(slot)
    assert here.manager.num_held_blocks == 0
    return restored.tokens


@pytest.mark.parametrize("model", ["v4-flash", "v4-pro", "v4.1-flash"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_that_comes_back_goes_on_as_if_it_had_never_left(model: str, length: int) -> None:
    assert check_round_trip(world(model), length, [], length + 131) == length


@examples(25)
@given(
    length=st.sampled_from(LENGTHS) | st.integers(1, 700),
    chunks=st.lists(st.integers(1, 700), max_size=3),
    more=st.integers(0, 200),
    model=st.sampled_from(["v4-flash", "v4.1-flash"]),
)
def test_however_a_prompt_was_computed_it_goes_on_as_one_that_never_left(
    length: int, chunks: list[int], more: int, model: str
) -> None:
    check_round_trip(world(model), length, chunks, length + more)


@examples(15)
@given(
    turns=st.lists(st.tuples(st.integers(1, 3), st.sampled_from((3, 128, 130, 259, 384))),
                   min_size=4, max_size=7),
    room=st.none() | st.integers(1, 6),
)  # fmt: skip
def test_prompts_that_share_a_store_come_back_right_however_little_it_keeps(
    turns: list[tuple[int, int]], room: int | None
) -> None:
    """Each takes what there is of it, computes the rest, and leaves it for the next."""
    here = world("v4-flash", "model.layers=[2,3]")
    size = sum(family.object_bytes for family in here.cache.families.values())
    store = MemoryStore(1 << 40 if room is None else room * size)
    library = here.library(store)
    for serial, length in turns:
        slot, fresh = here.admit(), here.admit()
        prefix = library.prefix(tokens_of(serial, length))
        here.compute(slot, serial, library.restore(prefix, slot).tokens, length)
        library.store_prefix(prefix, slot)
        here.compute(fresh, serial, length)
        for each in (slot, fresh):
            here.compute(each, serial, length + 133)
        assert here.differences(slot, fresh) == []
        for each in (slot, fresh):
            here.release(each)
    library.clear()
    assert here.manager.num_held_blocks == store.used_bytes == 0


@pytest.mark.parametrize(
    "settings",
    [
        ("model.formats.main=bf16", "model.formats.window=fp8", "model.formats.indexer=bf16"),
        ("model.formats.main=fp8", "model.formats.window=bf16", "model.formats.indexer=fp8"),
        ("cache.state=online",),
        ("workload.speculative.draft_tokens=3",),
        ("cache.sharing=layer",),
    ],
)
def test_every_format_and_layout_comes_back(settings: tuple[str, ...]) -> None:
    assert check_round_trip(World(*settings), 259, [], 390) == 259


def test_larger_blocks_and_open_groups() -> None:
    here = world("v4-flash", "cache.block_tokens=256")
    for length in (100, 130, 259, 384):
        assert check_round_trip(here, length, [], length + 150) == length


@pytest.mark.parametrize("model", ["v4-flash", "v4.1-flash"])
def test_a_cache_on_a_gpu_stores_and_restores_the_same(model: str) -> None:
    here = world(model)
    with on_twin(here.cache):
        assert check_round_trip(here, 300, [], 431) == 300


def test_a_prefix_that_does_not_fit_is_refused_and_nothing_has_changed() -> None:
    world = World("model.layers=[2,3]", "cache.num_blocks=4")
    library = world.library(PlainStore())
    slot, other = world.admit(), world.admit()
    world.compute(slot, 1, 300)
    prefix = library.prefix(tokens_of(1, 300))
    library.store_prefix(prefix, slot)
    with pytest.raises(OutOfBlocks):
        library.restore(prefix, other)
    assert world.manager.tokens[other] == 0
    world.release(slot)
    assert library.restore(prefix, other).tokens == 300


def test_two_requests_restore_one_prefix_at_once() -> None:
    here = world("v4-flash", "model.layers=[2,3]")
    library = here.library(PlainStore())
    prefix, slots = library.prefix(tokens_of(1, 300)), [here.admit() for _ in range(3)]
    here.compute(slots[0], 1, 300)
    library.store_prefix(prefix, slots[0])
    for slot in slots[1:]:
        assert library.restore(prefix, slot).tokens == 300
    for slot in slots:  # interleaved: a block or a ring that two hold would show
        here.compute(slot, 1, 400)
    for slot in slots:
        here.decode(slot, 1, 2)
    assert here.differences(slots[0], slots[1]) == here.differences(slots[0], slots[2]) == []
    for slot in slots:
        here.release(slot)


@examples(40)
@given(lost=st.sets(st.integers(0, 60)), ends=st.sets(st.sampled_from(range(128, 700, 128))))
def test_a_request_can_resume_where_everything_is_there(lost: set[int], ends: set[int]) -> None:
    """Whatever objects are gone: by the definition, name by name."""
    here, store = world("v4-flash", "model.layers=[2,3]"), PlainStore()
    library = here.library(store)
    prefix, slot = library.prefix(tokens_of(1, 700)), here.admit()
    for end in sorted({*ends, 700}):
        here.compute(slot, 1, end)
        library.store_prefix(library.prefix(tokens_of(1, end)), slot)
    here.release(slot)
    names = sorted(store.objects)
    store.delete([names[i] for i in lost if i < len(names)])
    families = here.cache.families.values()
    expected = [
        n
        for n in sorted({*range(128, 701, 128), 700})
        if prefix.name(n, "manifest") in store.objects
        and all(name in store.objects for f in families for name in prefix.names(f, n))
    ]
    assert library.lookup(prefix) == expected
    back = here.admit()
    assert library.restore(prefix, back).tokens == max(expected, default=0)
    here.release(back)


class Broken(PlainStore):
    """Raises at every call while it has an error; a half of what is put is there then."""

    error: StoreUnavailable | None = None

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        super().put(names[: len(names) // 2], data[: len(names) // 2])
        if self.error is not None:
            raise self.error
        super().put(names, data)

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        if self.error is not None:
            raise self.error
        return super().get(names, into)

    def exists(self, names: Sequence[str]) -> Found:
        if self.error is not None:
            raise self.error
        return super().exists(names)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreFull("full")])
def test_a_store_that_cannot_answer_has_nothing_and_keeps_nothing(error: StoreUnavailable) -> None:
    here, store = world("v4-flash", "model.layers=[2,3]"), Broken()
    library, slot, back = here.library(store), here.admit(), here.admit()
    prefix, store.error = library.prefix(tokens_of(1, 300)), error
    here.compute(slot, 1, 300)
    assert library.store_prefix(prefix, slot) == 0
    assert store.objects == {}
    assert library.failures > 0
    store.error = None
    assert library.store_prefix(prefix, slot) == 300
    store.error = error
    assert library.restore(prefix, back) == Restored()
    store.error = None
    assert library.restore(prefix, back).tokens == 300
    for each in (slot, back):
        here.release(each)
