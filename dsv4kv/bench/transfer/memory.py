"""The memory of a cache as another process reads it, and where a request is there."""

import os
from dataclasses import dataclass
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import torch

from dsv4kv.bench.tiers.objects import CacheBytes
from dsv4kv.bench.tiers.rows import Geometry, geometry_of, rows_needed, stretches
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.model.plan import Family
from dsv4kv.units import format_bytes

_ALIGN = 4096
_SHARED = Path("/dev/shm")  # where Linux has memory as files
_DIGEST_BYTES = 16


def shared_file() -> IO[bytes]:
    """A file without a name, in memory where there is such a folder."""
    try:
        return TemporaryFile(dir=_SHARED if _SHARED.exists() else None)
    except OSError as error:
        raise StoreUnavailable(
            f"no shared memory can be had ({error}): let {_SHARED} be written."
        ) from None


def share(manager: KVCacheManager, file: int) -> memoryview:
    """Move all pools into a file, and return its bytes.

    Before the cache's layers are bound to operations. Raises ``StoreFull`` where there is too
    little of it.
    """
    size = sum(_aligned(tensor.nbytes) for _, _, tensor in manager.tensors())
    free = disk_usage(_SHARED).free if _SHARED.exists() else size
    if size > free:
        raise StoreFull(
            f"the cache has {format_bytes(size)} and {_SHARED} {format_bytes(free)} free: "
            "make it larger, or the cache smaller."
        )
    os.ftruncate(file, size)
    memory, offset = memoryview(mmap(file, size)), 0
    for _, _, tensor in manager.tensors():
        data = torch.frombuffer(memory[offset : offset + tensor.nbytes], dtype=tensor.dtype)
        tensor.set_(data.view(tensor.shape).copy_(tensor))  # type: ignore[call-overload]
        offset += _aligned(tensor.nbytes)
    return memory


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class Memory(CacheBytes):
    """The memory of a cache.

    ``regions`` are the layers' pools as bytes, a family's one after another from the region in
    ``numbers`` on; ``geometries`` say where rows are in a layer.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.geometries = {name: geometry_of(each) for name, each in self.families.items()}
        self.regions: list[memoryview] = []
        self.numbers: dict[str, int] = {}
        for name, pools in self.pools.items():
            self.numbers[name] = len(self.regions)
            self.regions += [pool.numpy().reshape(-1).data for pool in pools]

    def places(self, memory: memoryview) -> list[slice]:
        """Where regions are in memory that ``share`` has moved them to."""
        views = (memory, *self.regions)
        base, *starts = (np.frombuffer(each, np.uint8).ctypes.data for each in views)
        sizes = map(len, self.regions)
        return [slice(at - base, at - base + n) for at, n in zip(starts, sizes, strict=True)]

    def rows(self, family: Family, tokens: int) -> range:
        """Rows that a request needs of a family; see ``rows_needed``."""
        return rows_needed(family, tokens, self.manager.plan.config.window_tokens)

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


@dataclass(frozen=True)
class FamilyRows:
    """A family of a request: ``rows`` of every layer."""

    first_region: int  # number of the first layer's pool in the memory
    geometry: Geometry
    rows: range
    ids: Ids  # int64[layers, n]: pages, or the slot
    digests: list[str]  # of the rows of every page, in their order


@dataclass(frozen=True)
class Manifest:
    """Where a request's rows are, by family, and their digests."""

    tokens: int
    families: dict[str, FamilyRows]


def make_manifest(memory: Memory, slot: int, tokens: int) -> Manifest:
    """Describe a request of ``tokens`` tokens in a slot, with digests of its rows."""
    families = {}
    for name, family in memory.families.items():
        rows, geometry = memory.rows(family, tokens), memory.geometries[name]
        ids = memory.units(family, slot, tokens)
        digests = memory.digests(family, ids, rows, geometry.rows)
        families[name] = FamilyRows(memory.numbers[name], geometry, rows, ids, digests)
    return Manifest(tokens, families)
