"""A receiver: reads a request out of another cache into its own, and proves that it is that."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np

from dsv4kv.bench.tiers.rows import Descriptors, coalesce, describe
from dsv4kv.bench.transfer.memory import Manifest, Memory, check_manifest
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import VerificationError
from dsv4kv.model.families import Kept
from dsv4kv.runs.statistics import Estimate


@dataclass(frozen=True)
class Moved:
    """What was read of one family, and how fast in the rounds that were timed."""

    pieces: int = 0  # descriptors before neighbours were merged
    descriptors: int = 0
    bytes: int = 0
    useful_bytes: int = 0  # of rows alone, without padding
    gbps: Estimate | None = None

    def __add__(self, other: "Moved") -> "Moved":
        counts = ("pieces", "descriptors", "bytes", "useful_bytes")
        return Moved(*(getattr(self, name) + getattr(other, name) for name in counts))


@dataclass
class Received:
    """A request that has come: its slot, the slot's generation, its tokens, and what was read."""

    slot: int
    generation: int
    tokens: int
    moved: dict[str, Moved] = field(default_factory=dict)  # by family


@dataclass(frozen=True)
class Read:
    """Descriptors of layers of a family, as places there and views here."""

    places: Ids  # int64[n, 3]: region, first byte, bytes
    into: list[memoryview]
    moved: Moved  # once it is read


@contextmanager
def _arriving(manager: KVCacheManager, tokens: int) -> Iterator[Received]:
    """A request in a new slot, which is given back if the request does not come."""
    slot = manager.admit_request()
    received = Received(slot, manager.generation(slot), tokens)
    try:
        yield received
    except BaseException:
        manager.release_request(slot, received.generation)
        raise


def receive(memory: Memory, manifest: Manifest, regions: Sequence[memoryview]) -> Received:
    """Take a request in, and compare every page with its digest.

    ``regions`` are the other cache's.

    Raises:
        ConfigError: The caches differ.
        CacheError: No slot or blocks are free here.
        VerificationError: Received bytes differ from sent bytes.
        In every case the slot and its blocks are given back.
    """
    with _arriving(memory.manager, manifest.tokens) as received:
        check_manifest(manifest, memory)
        prepare_forward(memory.manager, [received.slot], [0], [manifest.tokens])
        for name in memory.families:
            plan = plan_read(memory, manifest, received.slot, name)
            read(regions, plan.places, plan.into)
            received.moved[name] = plan.moved
        verify(memory, manifest, received.slot)
    return received


def receive_layers(
    memory: Memory, events: Iterable[Manifest | int], regions: Sequence[memoryview]
) -> Received:
    """Take a request in while it is computed: pages of a layer as soon as it has them.

    ``events``: a manifest for each chunk, then each of its layers that is computed; in the end
    the whole request, complete. Windows and states come then, and so do the digests. Raises as
    ``receive``.
    """
    manager, families = memory.manager, memory.families
    with _arriving(manager, 0) as received:
        received.moved = {name: Moved() for name in families}

        def fetch(name: str, manifest: Manifest, layers: Sequence[int] | None = None) -> None:
            plan = plan_read(memory, manifest, received.slot, name, layers)
            read(regions, plan.places, plan.into)
            received.moved[name] += plan.moved

        for event in events:
            if isinstance(event, Manifest):
                manifest = event
                check_manifest(manifest, memory)
                prepare_forward(manager, [received.slot], [received.tokens], [manifest.tokens])
                received.tokens = manifest.tokens
                continue
            for name, family in families.items():
                if family.kept is Kept.PAGES and event in family.layers:
                    fetch(name, manifest, [family.layers.index(event)])
        for name, family in families.items():
            if family.kept is not Kept.PAGES:
                fetch(name, manifest)
        verify(memory, manifest, received.slot)
    return received


def plan_read(
    memory: Memory,
    manifest: Manifest,
    slot: int,
    name: str,
    layers: Sequence[int] | None = None,
) -> Read:
    """Which bytes of a family there go where here; ``layers`` by their place, None for all."""
    family, offered, ours = memory.families[name], manifest.families[name], memory.geometries[name]
    ids, rows, theirs = memory.units(family, slot, manifest.tokens), offered.rows, offered.ids
    first, pieces = memory.numbers[name], 0
    places, into = list[Ids](), list[memoryview]()
    found: Descriptors | None = None
    for i in range(len(family.layers)) if layers is None else layers:
        if found is None or (ids[i] != ids[i - 1]).any() or (theirs[i] != theirs[i - 1]).any():
            each = describe(offered.geometry, theirs[i], ours, ids[i], rows)
            found = coalesce(each)
        pieces += len(each)
        number = np.full(len(found), offered.first_region + i)
        places.append(np.stack([number, found.source, found.lengths], axis=1))
        pool = memory.regions[first + i]
        starts, ends = found.target.tolist(), (found.target + found.lengths).tolist()
        into += [pool[start:end] for start, end in zip(starts, ends, strict=True)]
    merged = np.concatenate(places)
    size, useful = int(merged[:, 2].sum()), len(rows) * sum(offered.geometry.row_bytes)
    return Read(merged, into, Moved(pieces, len(merged), size, useful * len(places)))


def read(regions: Sequence[memoryview], places: Ids, into: Sequence[memoryview]) -> int:
    """Copy stretches of regions into views of the same lengths; returns nanoseconds."""
    start = perf_counter_ns()
    for (number, first, size), target in zip(places.tolist(), into, strict=True):
        target[:] = regions[number][first : first + size]
    return perf_counter_ns() - start


def verify(memory: Memory, manifest: Manifest, slot: int) -> None:
    """Hash every page's rows where decode steps read them, and compare with the sender's.

    Raises ``VerificationError`` with every family that differs.
    """
    wrong = []
    for name, family in memory.families.items():
        offered = manifest.families[name]
        ids = memory.units(family, slot, manifest.tokens)
        found = memory.digests(family, ids, offered.rows, offered.geometry.rows)
        if unlike := sum(a != b for a, b in zip(found, offered.digests, strict=True)):
            wrong.append(f"{name}: {unlike:,} of {len(found):,} pages")
    if wrong:
        raise VerificationError(
            "What has come is not what left, by its digests: " + "; ".join(wrong) + "."
        )
