"""Restored is never left, bit for bit; what is not all there is not restored."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.library import Bytes, MemoryStore, Prefix, Restored
from dsv4kv.errors import OutOfBlocks, StoreFull, StoreUnavailable
from tests.bench.tiers.world import World, tokens_of
from tests.examples import examples

BLOCK = 128


@cache
def world(model: str = "v4-flash", *options: str) -> World:
    """Shared between tests: each leaves it as empty as it found it."""
    return World(*options, model=model)


def check_round_trip(here: World, length: int, chunks: list[int], end: int) -> None:
    """Store a prompt, restore it elsewhere, and go on beside one that never left."""
    library = here.library(MemoryStore())
    prefix = library.prefix(tokens_of(1, length))
    stayed, left = here.admit(), here.admit()
    for slot in (stayed, left):
        for stop in sorted({*chunks, length}):
            here.compute(slot, 1, min(stop, length))
    library.store_prefix(prefix, left)
    here.release(left)
    noise, back = here.admit(), here.admit()
    here.compute(noise, 2, 130)
    assert library.restore(prefix, back).tokens == length
    here.go_on(back, 1, end)
    here.compute(stayed, 1, end)
    here.decode(stayed, 1, 1)
    assert here.differences(stayed, back) == []
    for slot in (stayed, noise, back):
        here.release(slot)
    assert here.manager.num_held_blocks == 0


@examples(25)
@given(
    blocks=st.integers(1, 5),
    chunks=st.lists(st.integers(1, 640), max_size=3),
    more=st.integers(0, 200),
    model=st.sampled_from(["v4-flash", "v4-pro", "v4.1-flash"]),
)
def test_however_a_prompt_was_computed_it_goes_on_as_one_that_never_left(
    blocks: int, chunks: list[int], more: int, model: str
) -> None:
    check_round_trip(world(model), blocks * BLOCK, chunks, blocks * BLOCK + more)


@pytest.mark.parametrize(
    "settings",
    [
        ("model.formats.main=bf16", "model.formats.window=fp8", "model.formats.indexer=bf16"),
        ("model.formats.main=fp8", "model.formats.window=bf16", "model.formats.indexer=fp8"),
        ("cache.state=online",),
        ("cache.block_tokens=256",),
        ("workload.speculative.draft_tokens=3",),
        ("cache.sharing=layer",),
    ],
)
def test_every_format_and_layout_comes_back(settings: tuple[str, ...]) -> None:
    check_round_trip(World(*settings), 256, [], 390)


def test_a_prefix_that_does_not_fit_is_refused_and_nothing_has_changed() -> None:
    world = World("model.layers=[2,3]", "cache.num_blocks=4")
    library = world.library(MemoryStore())
    slot, other = world.admit(), world.admit()
    world.compute(slot, 1, 384)
    prefix = library.prefix(tokens_of(1, 384))
    library.store_prefix(prefix, slot)
    with pytest.raises(OutOfBlocks):
        library.restore(prefix, other)
    assert world.manager.tokens[other] == 0
    world.release(slot)
    assert library.restore(prefix, other).tokens == 384


@examples(40)
@given(lost=st.sets(st.integers(0, 60)), ends=st.sets(st.integers(1, 4)))
def test_a_request_can_resume_where_everything_is_there(lost: set[int], ends: set[int]) -> None:
    """Whatever objects are gone: by the definition, name by name."""
    here, store = world("v4-flash", "model.layers=[2,3]"), MemoryStore()
    library, slot = here.library(store), here.admit()
    prefix = library.prefix(tokens_of(1, 5 * BLOCK))
    for end in sorted({*ends, 5}):
        here.compute(slot, 1, end * BLOCK)
        library.store_prefix(library.prefix(tokens_of(1, end * BLOCK)), slot)
    here.release(slot)
    names = sorted(store.objects)
    store.delete([names[i] for i in lost if i < len(names)])
    pages, tails = ("csa", "csa_indexer", "hca"), ("window", "csa_state", "csa_indexer_state")
    expected = [
        end
        for end in range(1, 6)
        if all(prefix.name(what, end) in store.objects for what in ("manifest", *tails))
        and all(name in store.objects for what in pages for name in prefix.names(what, end))
    ]
    assert library.lookup(prefix) == expected
    back = here.admit()
    assert library.restore(prefix, back).tokens == max(expected, default=0) * BLOCK
    library.clear()
    assert store.objects == {}
    here.release(back)


class Broken(MemoryStore):
    """Raises in the middle of what is put while it has an error."""

    error: StoreUnavailable | None = None

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        super().put(names[: len(names) // 2], data[: len(names) // 2])
        if self.error is not None:
            raise self.error
        super().put(names, data)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreFull("full")])
def test_what_was_stored_in_part_is_not_found(error: StoreUnavailable) -> None:
    here, store = world("v4-flash", "model.layers=[2,3]"), Broken()
    library, slot, back = here.library(store), here.admit(), here.admit()
    prefix, store.error = library.prefix(tokens_of(1, 384)), error
    here.compute(slot, 1, 384)
    with pytest.raises(type(error), match=str(error)):
        library.store_prefix(prefix, slot)
    assert library.restore(prefix, back) == Restored()
    store.error = None
    library.store_prefix(prefix, slot)
    assert library.restore(prefix, back).tokens == 384
    for each in (slot, back):
        here.release(each)


def test_keys_are_sglangs_page_hashes() -> None:
    """Recorded from SGLang 0.5.23: tokens 0 … 255, then 256 … 511 after them."""
    assert Prefix(np.arange(600), 256).keys == [
        "8808405eec6fbe306fe3369f88daed79dd5613ddbb5e801f632b01d6218c5f08",
        "705440bca5981da70aa2be86254ecd2a1d66e6b280edf72ba0c3b17074bb9061",
    ]
