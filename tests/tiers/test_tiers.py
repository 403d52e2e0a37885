"""Tiers on top of each other: what is written when, what leaves first, what is fetched."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.choices import POLICIES
from dsv4kv.errors import OutOfBlocks, StoreFull, StoreUnavailable
from dsv4kv.tiers.library import Library
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.tier import Node, Tier
from tests.examples import examples
from tests.tiers.world import PlainStore, World, tokens_of

PAGE = 8192


def chain(name: str, count: int) -> list[Node]:
    """Nodes that follow on each other, of two objects and 8 KiB each."""
    keys = [f"{name}{i}" for i in range(count)]
    parents = ["", *keys]
    return [
        Node(key, parent, (f"{key}.csa", f"{key}.hca"), (6144, 2048))
        for key, parent in zip(keys, parents, strict=False)
    ]


def bytes_of(nodes: Sequence[Node]) -> list[list[Bytes]]:
    return [[np.full(size, i, dtype=np.uint8) for i, size in enumerate(n.sizes)] for n in nodes]


def keep(tier: Tier, nodes: list[Node]) -> int:
    """As a request does: what is there already is used, and the rest written."""
    with tier.serving([node.key for node in nodes]):
        wanted = tier.wanted(nodes, leaving=False)
        some = [node for node, wants in zip(nodes, wanted, strict=True) if wants]
        return tier.keep(some, bytes_of(some)) if some else 0


@examples(75)
@given(
    data=st.data(),
    policy=st.sampled_from(list(POLICIES)),
    capacity=st.integers(1, 6),
)
def test_what_is_kept_fits_and_its_parents_are_there(
    data: st.DataObject, policy: str, capacity: int
) -> None:
    store = PlainStore()
    tier = Tier("small", store, capacity_bytes=capacity * PAGE, policy=policy)
    for _ in range(12):
        nodes = chain(data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 8)))
        keep(tier, nodes)
        kept = set(tier.nodes)
        assert tier.used_bytes == len(kept) * PAGE <= capacity * PAGE
        assert {name.partition(".")[0] for name in store.objects} == kept
        assert len(store.objects) == 2 * len(kept)
        for key in kept:
            assert key[1:] == "0" or f"{key[0]}{int(key[1:]) - 1}" in kept


def test_the_least_recently_used_leaf_goes_first() -> None:
    tier = Tier("small", PlainStore(), capacity_bytes=4 * PAGE)
    keep(tier, chain("a", 2))
    keep(tier, chain("b", 2))
    keep(tier, chain("a", 2))
    keep(tier, chain("c", 1))
    assert sorted(tier.nodes) == ["a0", "a1", "b0", "c0"]


def test_what_another_process_stored_is_not_written_again() -> None:
    store = PlainStore()
    keep(Tier("first", store), chain("a", 3))
    tier = Tier("second", store, capacity_bytes=8 * PAGE)
    assert keep(tier, chain("a", 4)) == 1
    assert tier.used_bytes == 4 * PAGE


class Broken(PlainStore):
    """Refuses whatever it is told to refuse."""

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
def test_a_store_that_cannot_write_costs_nothing_but_what_it_would_have_kept(
    error: StoreUnavailable,
) -> None:
    store = Broken()
    store.error = error
    tier = Tier("broken", store)
    assert keep(tier, chain("a", 3)) == 0
    assert (tier.nodes, tier.used_bytes, store.objects) == ([], 0, {})
    assert tier.totals.failures > 0
    store.error = None
    assert keep(tier, chain("a", 3)) == 3


@dataclass
class Both:
    """A memory tier over a file tier, and a prompt of 300 tokens."""

    world: World
    upper: Tier
    lower: Tier
    library: Library

    def leave(self, *, leaving: bool = False, serial: int = 1) -> None:
        """Compute the prompt, store it, and let it go."""
        slot = self.world.admit()
        self.world.compute(slot, serial, 300)
        prefix = self.library.prefix(tokens_of(serial, 300))
        self.library.store_prefix(prefix, slot, leaving=leaving)
        self.world.release(slot)

    def come_back(self, serial: int = 1) -> int:
        slot = self.world.admit()
        restored = self.library.restore(self.library.prefix(tokens_of(serial, 300)), slot)
        self.world.release(slot)
        return restored.tokens


WORLD = World("model.layers=[2,3]")


def both(
    upper: str = "write_through", lower: str = "write_through", pages: int | None = None
) -> Both:
    node = sum(f.object_bytes for f in WORLD.cache.families.values())
    capacity = None if pages is None else node * pages
    tiers = (
        Tier("memory", PlainStore(), capacity_bytes=capacity, write=upper),
        Tier("file", PlainStore(), write=lower),
    )
    return Both(WORLD, *tiers, WORLD.library(*tiers))


def test_written_through_is_in_both_at_once() -> None:
    here = both()
    here.leave()
    assert here.upper.nodes == here.lower.nodes
    assert len(here.upper.nodes) == 3  # two whole blocks, and the end of the prompt


def test_selective_is_written_when_it_is_used_again() -> None:
    here = both(lower="write_through_selective")
    here.leave()
    assert not here.lower.nodes
    assert here.come_back() == 300
    assert sorted(here.lower.nodes) == sorted(here.upper.nodes)


def test_written_back_is_written_when_the_tier_above_gives_it_up() -> None:
    here = both(lower="write_back", pages=2)
    here.leave()
    assert not here.lower.nodes
    here.leave(serial=2)
    assert here.lower.nodes
    assert here.come_back() == 300


def test_a_cache_that_keeps_its_own_writes_when_it_gives_up() -> None:
    here = both(upper="write_back")
    here.leave()
    assert not here.upper.nodes
    here.leave(leaving=True)
    assert len(here.upper.nodes) == 3


def test_what_is_read_from_below_is_kept_above() -> None:
    here = both()
    here.leave()
    here.upper.store.delete(list(objects(here.upper)))
    assert here.come_back() == 300
    read = here.lower.totals.read
    assert read > 0
    assert here.come_back() == 300
    assert here.lower.totals.read == read


def test_a_tier_that_is_gone_is_passed_over() -> None:
    here = both()
    here.leave()
    broken = Broken()
    broken.error = StoreUnavailable("gone")
    here.upper.store = broken
    assert here.come_back() == 300
    assert here.upper.totals.failures > 0


@pytest.mark.parametrize("policy", ["wait_complete", "timeout"])
def test_what_is_waited_for_is_in_the_first_tier(policy: str) -> None:
    here = both()
    here.leave()
    prefix, slot = here.library.prefix(tokens_of(1, 300)), here.world.admit()
    here.upper.store.delete(list(objects(here.upper)))
    fetched = here.library.prefetch(prefix, policy)
    assert here.library.restore(prefix, slot, fetched=fetched).tokens == 300
    here.world.release(slot)


class Slow(PlainStore):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.asked = Event(), Event()

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        self.asked.set()
        self.let.wait(60)
        return super().get(names, into)


def test_best_effort_takes_what_has_come_and_fetches_no_more() -> None:
    here = both()
    slow = Slow()
    here.lower.store = slow
    here.leave()
    prefix, slot = here.library.prefix(tokens_of(1, 300)), here.world.admit()
    here.upper.store.delete(list(objects(here.upper)))
    fetched = here.library.prefetch(prefix, "best_effort")
    slow.asked.wait(60)
    fetched._stop.set()  # what ``settle`` does next
    slow.let.set()
    assert here.library.restore(prefix, slot, fetched=fetched).tokens == 0
    assert here.world.manager.num_held_blocks == 0
    here.world.release(slot)


def test_a_prefix_that_does_not_fit_is_refused_and_nothing_has_changed() -> None:
    world = World("model.layers=[2,3]", "cache.num_blocks=4")
    library = world.library(Tier("memory", PlainStore()))
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
    here = both()
    here.leave()
    world, prefix = here.world, here.library.prefix(tokens_of(1, 300))
    slots = [world.admit() for _ in range(3)]
    world.compute(slots[0], 1, 300)
    for slot in slots[1:]:
        here.library.restore(prefix, slot)
    for slot in slots:  # in turns: a block or a ring that two hold would show
        world.compute(slot, 1, 400)
    for slot in slots:
        world.decode(slot, 1, 2)
    assert world.differences(slots[0], slots[1]) == world.differences(slots[0], slots[2]) == []
    for slot in slots:
        world.release(slot)


@examples(40)
@given(lost=st.sets(st.integers(0, 60)), period=st.sampled_from(["periodic:128", "full", "ends"]))
def test_a_request_can_resume_where_everything_is_there(lost: set[int], period: str) -> None:
    """Whatever objects are gone: by the definition, name by name."""
    store = PlainStore()
    library = WORLD.library(Tier("memory", store), windows=period)
    prefix, slot = library.prefix(tokens_of(1, 700)), WORLD.admit()
    for end in sorted({*library.windows.places(700, 0, 0), 700}):
        WORLD.compute(slot, 1, end)
        library.store_prefix(prefix, slot)
    WORLD.release(slot)
    names = sorted(store.objects)
    store.delete([names[i] for i in lost if i < len(names)])
    families = WORLD.cache.families.values()
    expected = [
        n
        for n in sorted({*range(128, 701, 128), 700})
        if prefix.manifest_name(n, whole=True) in store.objects
        and all(name in store.objects for f in families for name in prefix.names(f, n))
    ]
    assert list(library.lookup(prefix).points) == expected
    back = WORLD.admit()
    assert library.restore(prefix, back).tokens == max(expected, default=0)
    WORLD.release(back)


def objects(tier: Tier) -> dict[str, bytes]:
    """What is in a tier's store."""
    assert isinstance(tier.store, PlainStore)
    return tier.store.objects
