"""Restored is never left, bit for bit; what is not all there is not restored."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.tiers.prefixes import namespace_of
from dsv4kv.tiers.stores.contract import Bytes, Found, Store
from dsv4kv.tiers.stores.file import FileStore
from dsv4kv.tiers.stores.lanes import ALIGNED
from dsv4kv.tiers.stores.memory import MemoryStore
from dsv4kv.tiers.tier import Tier
from tests.examples import examples
from tests.tiers.world import PlainStore, World, on_twin, tokens_of

LENGTHS = (1, 3, 4, 127, 128, 129, 255, 256, 257)
"""Of 0 tokens nothing is kept."""
EXACT = ["ends", "ends+junctions", "full", "periodic:128", "sglang", "vllm:dense", "vllm:128",
         "lmcache:128", "zero"]  # fmt: skip


@cache
def world(model: str = "v4-flash", *options: str) -> World:
    """Shared between tests: each leaves it as empty as it found it."""
    return World(*options, model=model)


def check_round_trip(
    here: World,
    windows: str,
    length: int,
    chunks: list[int],
    end: int,
    store: Store | None = None,
) -> int:
    """Store a prompt, restore it elsewhere, go on beside one that never left: tokens restored."""
    library = here.library(Tier("any", store or PlainStore()), windows=windows)
    prefix = library.prefix(tokens_of(1, length))
    stayed, left = here.admit(), here.admit()
    stops = library.windows.places(length, 0, 0)
    for slot in (stayed, left):
        for stop in sorted({*chunks, *stops, length}):
            here.compute(slot, 1, min(stop, length))
            if slot == left:
                library.store_prefix(prefix, slot)
    here.release(left)
    noise, back = here.admit(), here.admit()
    here.compute(noise, 2, 130)
    restored = library.restore(prefix, back)
    here.go_on(library, back, 1, restored, end)
    here.compute(stayed, 1, end)
    here.decode(stayed, 1, 1)
    assert here.differences(stayed, back) == []
    assert restored.exact
    for slot in (stayed, noise, back):
        here.release(slot)
    assert here.manager.num_held_blocks == 0
    library.close()
    return restored.tokens


@pytest.mark.parametrize("model", ["v4-flash", "v4-pro", "v4.1-flash"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_that_comes_back_goes_on_as_if_it_had_never_left(model: str, length: int) -> None:
    assert check_round_trip(world(model), "ends", length, [], length + 131) == length


@examples(25)
@given(
    windows=st.sampled_from(EXACT),
    length=st.sampled_from(LENGTHS) | st.integers(1, 700),
    chunks=st.lists(st.integers(1, 700), max_size=3),
    more=st.integers(0, 200),
    model=st.sampled_from(["v4-flash", "v4.1-flash"]),
)
def test_every_exact_strategy_restores_the_bits_of_a_run_that_never_left(
    windows: str, length: int, chunks: list[int], more: int, model: str
) -> None:
    check_round_trip(world(model), windows, length, chunks, length + more)


@pytest.mark.parametrize("length", [3, 257, 300])
@pytest.mark.parametrize("model", ["v4-flash", "v4.1-flash"])
def test_every_store_brings_back_the_same(length: int, model: str, tmp_path: Path) -> None:
    here = world(model)
    files = FileStore(tmp_path, namespace_of(here.manager.plan, "1"))
    for store in (MemoryStore(1 << 30), files):
        found = check_round_trip(here, "ends", length, [], length + 20, store)
        assert found == length
        store.close()
    assert files.damaged == 0


@examples(15)
@given(
    turns=st.lists(st.tuples(st.integers(1, 3), st.sampled_from((3, 128, 130, 259, 384))),
                   min_size=4, max_size=7),
    pages=st.integers(1, 5),
    policy=st.sampled_from(["lru", "arc", "s3fifo", "gdsf"]),
    below=st.sampled_from(["write_through", "write_back", "write_through_selective"]),
)  # fmt: skip
def test_prompts_that_share_tiers_and_are_evicted_from_them_come_back_right(
    turns: list[tuple[int, int]], pages: int, policy: str, below: str
) -> None:
    """Each takes what there is of it, computes the rest, and leaves it for the next."""
    here = world("v4-flash", "model.layers=[2,3]")
    room = sum(family.object_bytes for family in here.cache.families.values())
    upper = Tier("memory", PlainStore(), capacity_bytes=pages * room, policy=policy)
    lower = Tier("file", PlainStore(), capacity_bytes=2 * pages * room, policy=policy, write=below)
    library = here.library(upper, lower, windows="ends+junctions")
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
        for tier in library.stack.tiers:
            assert tier.used_bytes <= (tier.capacity_bytes or 0)
    assert here.manager.num_held_blocks == 0
    library.close()


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
    assert check_round_trip(World(*settings), "ends", 259, [], 390) == 259


def test_larger_blocks_and_open_groups() -> None:
    here = world("v4-flash", "cache.block_tokens=256")
    for length in (100, 130, 259, 384):
        assert check_round_trip(here, "ends", length, [], length + 150) == length
    assert check_round_trip(here, "zero", 700, [], 800) == 0  # 3 layers take 512, in whole blocks


def test_nothing_stored_is_nothing_found() -> None:
    here = world()
    library = here.library(Tier("memory", PlainStore()))
    slot = here.admit()
    assert library.store_prefix(library.prefix([]), slot).tokens == 0
    assert library.restore(library.prefix(tokens_of(1, 300)), slot).tokens == 0
    assert here.manager.num_held_blocks == 0
    here.release(slot)


@pytest.mark.parametrize("model", ["v4-flash", "v4.1-flash"])
def test_a_cache_on_a_gpu_stores_and_restores_the_same(model: str) -> None:
    here = world(model)
    with on_twin(here.cache) as stream:
        assert check_round_trip(here, "ends", 300, [], 431) == 300
    assert stream.waited > 10


class Watched(PlainStore):
    """Says what it was asked for, and where objects are to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.addresses: list[int] = []

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        self._look(names, data)
        super().put(names, data)

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        self.asked.append(list(names))
        self._look(names, into)
        return super().get(names, into)

    def _look(self, names: Sequence[str], where: Sequence[Bytes]) -> None:
        for name, each in zip(names, where, strict=True):
            if not name.endswith("manifest"):
                self.addresses.append(each.__array_interface__["data"][0])


def test_digests_of_what_another_process_stored_are_read_many_at_a_time() -> None:
    here, store = world(), Watched()
    slot = here.admit()
    for end in (512, 640):  # the second library has seen none of the first one's pages
        here.compute(slot, 1, end)
        library = here.library(Tier("any", store))
        assert library.store_prefix(library.prefix(tokens_of(1, end)), slot).tokens == end
        library.close()
    pages = [names for names in store.asked if len(names) > 1]
    assert sorted(map(len, pages)) == [4, 4, 4]  # of entries, keys and entries of 128 tokens
    assert sum(len(names) == 1 for names in store.asked) == 0
    here.release(slot)


def test_objects_are_moved_from_and_to_memory_that_begins_at_a_page() -> None:
    """Which is what ``O_DIRECT`` takes without a copy."""
    here, store = world(), Watched()
    assert check_round_trip(here, "ends", 300, [], 310, store) == 300
    assert len(store.addresses) > 10
    assert all(address % ALIGNED == 0 for address in store.addresses)
