"""A cache's pools as regions of bytes, and the rows of a request in them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from shutil import disk_usage

import numpy as np
import torch

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.tiers.families import Family
from dsv4kv.tiers.objects import CacheBytes
from dsv4kv.tiers.wire.rows import Geometry, geometry_of, rows_needed, stretches
from dsv4kv.units import format_bytes

_ALIGN = 4096
_SHARED = Path("/dev/shm")  # where Linux has it; macOS limits it elsewhere
_DIGEST_BYTES = 16


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


def attach(name: str) -> Segment:
    """Map a sender's segment; raises ``StoreUnavailable`` where there is none of that name."""
    try:
        segment = Segment(name)
    except (OSError, ValueError):
        raise StoreUnavailable(
            "the sender's shared memory is not to be had here: it is of another machine, or "
            "another receiver has it; set transport=tcp."
        ) from None
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    return segment


class Memory:
    """The memory of a cache, as it is read and written by another process.

    Attributes:
        manager: The cache.
        families: Its families, by name.
        geometries: Where their rows are in a layer.
        regions: Every layer's pool as bytes: a family's layers one after another.
        numbers: The first region of every family.
        segment: Shared memory that the pools are in, if they are.
        offsets: Where the regions are in it.
    """

    def __init__(self, manager: KVCacheManager, segment: Segment | None = None) -> None:
        """Look at the pools of a cache, in ``segment`` where ``share`` has moved them there.

        Raises ``ConfigError`` for a cache whose memory is not the host's.
        """
        if manager.device.type != "cpu":
            raise ConfigError(f"a cache on {manager.device}: transfers read the host's memory.")
        self.manager = manager
        self._bytes = found = CacheBytes(manager)
        self.families: Mapping[str, Family] = found.families
        self.geometries = {name: geometry_of(each) for name, each in found.families.items()}
        self.regions: list[memoryview] = []
        self.numbers: dict[str, int] = {}
        for name, pools in found.pools.items():
            self.numbers[name] = len(self.regions)
            self.regions += [pool.numpy().reshape(-1).data for pool in pools]
        self.segment = segment
        self.offsets = _offsets(self.regions, segment.bytes) if segment else []

    def ids(self, family: Family, slot: int, tokens: int) -> Ids:
        """Pages of a request that hold ``tokens`` tokens: int64[layers, n]; slots of the rest."""
        return self._bytes.units(family, slot, tokens)

    def rows(self, family: Family, tokens: int, prefix: int = 0) -> range:
        """Rows that a request needs of a family; see ``rows_needed``."""
        return rows_needed(family, tokens, self.manager.plan.config.window_tokens, prefix)

    def digests(self, family: Family, ids: Ids, rows: range, page_rows: int) -> list[str]:
        """A digest of every ``page_rows`` rows, of all layers: equal rows, equal digest."""
        geometry, first = self.geometries[family.name], self.numbers[family.name]
        pools = self.regions[first : first + len(family.layers)]
        return [digest(pools, geometry, ids, page) for page in _pages(rows, page_rows)]


def digest(pools: Sequence[memoryview], geometry: Geometry, ids: Ids, rows: range) -> str:
    """Hex digest of rows, layer by layer: pools of the layers, ids int64[layers, n]."""
    found = blake2b(digest_size=_DIGEST_BYTES)
    for pool, numbers in zip(pools, ids, strict=True):
        for part in stretches(geometry, numbers, rows):
            found.update(pool[part])
    return found.hexdigest()


def _pages(rows: range, page_rows: int) -> Iterator[range]:
    """Rows cut where pages of ``page_rows`` end."""
    for start in range(rows.start // page_rows * page_rows, rows.stop, page_rows):
        yield range(max(start, rows.start), min(start + page_rows, rows.stop))


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


def _offsets(regions: Sequence[memoryview], base: memoryview) -> list[int]:
    """Where every region is in the segment."""
    addresses = [np.frombuffer(each, dtype=np.uint8).ctypes.data for each in (base, *regions)]
    return [address - addresses[0] for address in addresses[1:]]


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
