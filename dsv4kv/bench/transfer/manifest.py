"""The memory of a cache as another process reads it, and what a sender says of a request there."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from shutil import disk_usage
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from dsv4kv.bench.tiers.objects import (
    CacheBytes,
    Geometry,
    NonNegative,
    Sealed,
    geometry_of,
    rows_needed,
    stretches,
)
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.model.families import Family
from dsv4kv.units import format_bytes

_ALIGN = 4096
_SHARED = Path("/dev/shm")  # where Linux has it; macOS limits it elsewhere
_DIGEST_BYTES = 16


class NotHere(StoreUnavailable):
    """Shared memory that one of the sides does not have."""


class Segment(SharedMemory):
    """Shared memory that pools live in: it stays mapped as long as its process lives."""

    def __del__(self) -> None:
        """Pools still look at it: what is unmapped at the end is the system's."""

    @property
    def bytes(self) -> memoryview:
        """All of it."""
        assert self.buf is not None
        return self.buf

    def forget(self) -> None:
        """Take its name away: it is gone with the last process that has mapped it."""
        with suppress(FileNotFoundError):
            self.unlink()


class Memory(CacheBytes):
    """The memory of a cache, as it is read and written by another process.

    ``regions`` are the layers' pools as bytes, a family's one after another from the region in
    ``numbers`` on; ``geometries`` say where rows are in a layer, ``offsets`` where regions are in
    the ``segment`` of shared memory, if they are in one.
    """

    def __init__(self, manager: KVCacheManager, segment: Segment | None = None) -> None:
        """Look at the pools of a cache, in ``segment`` where ``share`` has moved them there.

        Raises ``ConfigError`` for a cache whose memory is not the host's.
        """
        if manager.device.type != "cpu":
            raise ConfigError(f"a cache on {manager.device}: transfers read the host's memory.")
        super().__init__(manager)
        self.geometries = {name: geometry_of(each) for name, each in self.families.items()}
        self.regions: list[memoryview] = []
        self.numbers: dict[str, int] = {}
        for name, pools in self.pools.items():
            self.numbers[name] = len(self.regions)
            self.regions += [pool.numpy().reshape(-1).data for pool in pools]
        self.segment = segment
        self.offsets: list[int] = []
        if segment:
            views = (segment.bytes, *self.regions)
            base, *addresses = (np.frombuffer(each, np.uint8).ctypes.data for each in views)
            self.offsets = [address - base for address in addresses]

    def rows(self, family: Family, tokens: int, prefix: int = 0) -> range:
        """Rows that a request needs of a family; see ``rows_needed``."""
        return rows_needed(family, tokens, self.manager.plan.config.window_tokens, prefix)

    def digests(self, family: Family, ids: Ids, rows: range, page_rows: int) -> list[str]:
        """A digest of every ``page_rows`` rows, of all layers: equal rows, equal digest."""
        geometry, first = self.geometries[family.name], self.numbers[family.name]
        pools, digests = self.regions[first : first + len(family.layers)], []
        for start in range(rows.start // page_rows * page_rows, rows.stop, page_rows):
            page = range(max(start, rows.start), min(start + page_rows, rows.stop))
            found = blake2b(digest_size=_DIGEST_BYTES)
            for pool, numbers in zip(pools, ids, strict=True):
                for part in stretches(geometry, numbers, page):
                    found.update(pool[part])
            digests.append(found.hexdigest())
        return digests


def share(manager: KVCacheManager) -> Segment:
    """Move all pools into shared memory; before the cache's layers are bound to operations.

    Raises ``StoreFull`` where there is too little of it.
    """
    size = sum(_aligned(tensor.nbytes) for _, _, tensor in manager.tensors())
    free = disk_usage(_SHARED).free if _SHARED.exists() else size
    if size > free:
        raise StoreFull(
            f"the cache has {format_bytes(size)} and {_SHARED} {format_bytes(free)} free: "
            "make it larger, the cache smaller, or set transport=tcp."
        )
    segment = Segment(create=True, size=max(size, 1))
    memory, offset = segment.bytes, 0
    for _, _, tensor in manager.tensors():
        data = torch.frombuffer(memory[offset : offset + tensor.nbytes], dtype=tensor.dtype)
        moved = data.view(tensor.shape).copy_(tensor)
        tensor.set_(moved)  # type: ignore[call-overload]
        offset += _aligned(tensor.nbytes)
    return segment


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


Places = NDArray[np.int64]
"""int64[n, 3]: region, first byte, bytes."""


def parse_places(payload: bytes) -> Places:
    """Places of a frame; raises ``StoreUnavailable`` for what are none."""
    if len(payload) % 24:
        raise StoreUnavailable(f"a read of {len(payload):,} B is no list of places.")
    return np.frombuffer(payload, dtype="<i8").reshape(-1, 3)


def stretches_of(regions: Sequence[memoryview], places: Places) -> Iterator[memoryview]:
    """Views of places; raises ``StoreUnavailable`` for those that are in no region."""
    if not len(places):
        return iter(())
    number, start, length = places.T
    known = (number >= 0) & (number < len(regions))
    sizes = np.array([*map(len, regions), 0], dtype=np.int64)
    limit = sizes[np.where(known, number, -1)]
    good = known & (start >= 0) & (length >= 0) & (length <= limit) & (start <= limit - length)
    if not good.all():
        bad = places[int(np.argmin(good))].tolist()
        raise StoreUnavailable(f"there are no {bad[2]:,} B at {bad[1]:,} of region {bad[0]:,}.")
    return (regions[i][a : a + n] for i, a, n in places.tolist())


class MappedReader:
    """Reads memory that is mapped here: a shared segment, or another cache of this process."""

    def __init__(self, regions: Sequence[memoryview]) -> None:
        """Read these."""
        self._regions = regions

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        for source, target in zip(stretches_of(self._regions, places), into, strict=True):
            target[:] = source


def mapped(segment: memoryview, offsets: Sequence[int]) -> MappedReader:
    """A reader of regions of a shared segment, each up to the next one.

    Raises ``StoreUnavailable`` where the segment is shorter.
    """
    ends = sorted({*offsets, len(segment)})
    if ends[-1] > len(segment):
        raise StoreUnavailable(
            f"the sender has a region at {ends[-1]:,} of a segment of {len(segment):,} B: its "
            "manifest is wrong."
        )
    following = dict(pairwise(ends))
    return MappedReader([segment[start : following.get(start, start)] for start in offsets])


def attach(manifest: "Manifest") -> MappedReader:
    """Map a sender's segment; raises ``NotHere`` where it has none, or not on this machine."""
    try:
        segment = Segment(manifest.segment)
    except (OSError, ValueError):
        raise NotHere(
            "the sender's shared memory is not available here: it is on another machine, or "
            "another receiver has it; set transport=tcp."
        ) from None
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    return mapped(segment.bytes, manifest.regions)


_ROWS = Field(max_length=2**22)


class FamilyRows(Sealed):
    """A family of the request: rows ``first`` to ``end`` of every layer."""

    format: str  # of its entries; float32 for states
    ratio: NonNegative  # tokens of an entry or a group
    layers: list[NonNegative]  # model indices
    regions: NonNegative  # number of the first layer's pool in the sender's memory
    geometry: Geometry
    first: NonNegative
    end: NonNegative
    ids: list[Annotated[list[NonNegative], _ROWS]]
    """Pages, or the slot: every layer's, or one list for all layers."""
    digests: Annotated[list[str], _ROWS]
    """Of the rows of every page, in their order."""

    def rows(self) -> range:
        """Numbers of the rows."""
        return range(self.first, self.end)

    def blocks(self) -> Ids:
        """int64[layers, n]: pages of every layer."""
        ids = np.array(self.ids, dtype=np.int64)
        return np.broadcast_to(ids, (len(self.layers), ids.shape[1]))


class Manifest(Sealed):
    """A sender's description of a request: where its rows are, and their digests."""

    model: str
    hadamard: bool  # whether indexer keys were rotated
    tokens: NonNegative
    prefix: NonNegative  # tokens whose pages are not offered
    families: dict[str, FamilyRows]
    complete: bool
    """Whether the prompt is computed: before, pages are named, and have no digests."""
    segment: Annotated[str, Field(max_length=255)] = ""
    """Name of the shared memory that the sender's pools are in, if they are."""
    regions: list[Annotated[int, Field(ge=0, le=2**48)]] = Field(default_factory=list)
    """Where every region is in it."""


def make_manifest(
    memory: Memory, slot: int, tokens: int, *, prefix: int = 0, complete: bool = True
) -> Manifest:
    """Describe a request of ``tokens`` tokens in a slot, with digests of its rows.

    prefix: tokens whose pages the other side already has; they are omitted.
    complete: False while the prompt is being computed: pages without digests.
    """
    families = {}
    for name, family in memory.families.items():
        rows = memory.rows(family, tokens, prefix)
        ids, geometry = memory.units(family, slot, tokens), memory.geometries[name]
        alike = bool((ids == ids[:1]).all())
        families[name] = FamilyRows(
            format=family.layout.format.name if family.layout else "float32",
            ratio=family.ratio,
            layers=list(family.layers),
            regions=memory.numbers[name],
            geometry=geometry,
            first=rows.start,
            end=rows.stop,
            ids=ids[:1].tolist() if alike else ids.tolist(),
            digests=memory.digests(family, ids, rows, geometry.rows) if complete else [],
        )
    plan = memory.manager.plan
    return Manifest(
        model=plan.config.name,
        hadamard=plan.hadamard,
        tokens=tokens,
        prefix=prefix,
        families=families,
        complete=complete,
        segment=memory.segment.name if memory.segment else "",
        regions=memory.offsets,
    )


def read_manifest(text: bytes) -> Manifest:
    """Raises ``StoreUnavailable`` for what is none."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise StoreUnavailable(f"the manifest is none: {where}: {first['msg']}.") from None


def check_manifest(manifest: Manifest, memory: Memory) -> None:
    """Raise ``ConfigError`` for a request that this cache cannot hold, bit for bit."""
    plan = memory.manager.plan
    for what, theirs, ours in (
        ("model", manifest.model, plan.config.name),
        ("rotation of indexer keys", manifest.hadamard, plan.hadamard),
        ("families", *(", ".join(sorted(each.families)) for each in (manifest, memory))),
    ):
        if theirs != ours:
            raise _refusal(what, theirs, ours)
    for name, family in memory.families.items():
        offered, held = manifest.families[name], memory.geometries[name]
        kind = family.layout.format.name if family.layout else "float32"
        for what, left, right in (
            ("layers", offered.layers, list(family.layers)),
            ("format", offered.format, kind),
            ("tokens of an entry", offered.ratio, family.ratio),
            ("bytes of a row", offered.geometry.row_bytes, held.row_bytes),
            ("kind of pages (ring)", offered.geometry.ring, held.ring),
        ):
            if left != right:
                raise _refusal(f"{name}: {what}", left, right)
        _check_rows(name, offered, memory.rows(family, manifest.tokens, manifest.prefix))


def _check_rows(name: str, offered: FamilyRows, needed: range) -> None:
    pages = 1 if offered.geometry.ring else -(-needed.stop // offered.geometry.rows)
    lists = {len(ids) for ids in offered.ids}
    counts = " or ".join(map(str, sorted(lists)))
    if (
        offered.rows() != needed
        or len(offered.ids) not in (1, len(offered.layers))
        or (needed and lists != {pages})
    ):
        raise StoreUnavailable(
            f"the sender has rows {offered.first:,} to {offered.end:,} of {name} in {counts} "
            f"pages, and a request of its length needs {needed.start:,} to {needed.stop:,} in "
            f"{pages:,}: its manifest is wrong."
        )


def _refusal(what: str, theirs: object, ours: object) -> ConfigError:
    said = f"{theirs}"[:200]
    return ConfigError(
        f"the two caches differ: {what}: {said} there and {ours} here. Rows are moved bit for "
        "bit, so build both alike."
    )
