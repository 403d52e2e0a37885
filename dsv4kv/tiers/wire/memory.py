"""A cache's pools as regions of bytes, and the rows of a request in them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import ConfigError
from dsv4kv.tiers.cache_bytes import CacheBytes
from dsv4kv.tiers.families import Family, Kept
from dsv4kv.tiers.wire.rows import Geometry, geometry_of, rows_needed, stretches

_ALIGN = 4096
_DIGEST_BYTES = 16


class Memory:
    """The memory of a cache, as it is read and written by another process.

    Attributes:
        manager: The cache.
        families: Its families, by name.
        geometries: Where their rows are in a layer.
        regions: Every layer's pool as bytes: a family's layers one after another.
        numbers: The first region of every family.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        """Raises ``ConfigError`` for a cache whose memory is not the host's."""
        if manager.device.type != "cpu":
            raise ConfigError(f"a cache on {manager.device}: transfers read the host's memory.")
        self.manager = manager
        found = CacheBytes(manager)
        self.families: Mapping[str, Family] = found.families
        self.geometries = {name: geometry_of(each) for name, each in found.families.items()}
        self.regions: list[memoryview] = []
        self.numbers: dict[str, int] = {}
        for name, pools in found.pools.items():
            self.numbers[name] = len(self.regions)
            self.regions += [pool.numpy().reshape(-1).data for pool in pools]

    def ids(self, family: Family, slot: int, tokens: int) -> Ids:
        """Pages of a request that hold ``tokens`` tokens: int64[layers, n]; slots of the rest."""
        layers = len(family.layers)
        if family.kept is not Kept.PAGES:
            return np.full((layers, 1), slot, dtype=np.int64)
        group = self.manager.plan.group_of(family.layers[0])
        tables = (t for t in self.manager.tables if t.group is group)
        table, count = next(tables), family.objects(tokens)
        lanes = [table.group.lane_of(layer) for layer in family.layers]
        return table.blocks[lanes, slot, :count].astype(np.int64)

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


class Segment(SharedMemory):
    """Shared memory that pools live in: it stays mapped as long as its process lives."""

    def __del__(self) -> None:
        """Pools still look at it: what is unmapped at the end is the system's."""


def shared_bytes(manager: KVCacheManager) -> int:
    """Bytes of a segment that holds all pools."""
    return sum(_aligned(tensor.nbytes) for tensor in _tensors(manager))


def share(manager: KVCacheManager, memory: memoryview) -> None:
    """Move all pools into ``memory``; before the cache's layers are bound to operations."""
    offset = 0
    for tensor in _tensors(manager):
        data = torch.frombuffer(memory[offset : offset + tensor.nbytes], dtype=tensor.dtype)
        moved = data.view(tensor.shape).copy_(tensor)
        tensor.set_(moved)  # type: ignore[call-overload]
        offset += _aligned(tensor.nbytes)


def offsets(memory: Memory, base: memoryview) -> list[int]:
    """Where every region is in the segment that its pools were moved into."""
    start = np.frombuffer(base, dtype=np.uint8).ctypes.data
    address = partial(np.frombuffer, dtype=np.uint8)
    return [address(region).ctypes.data - start for region in memory.regions]


def _tensors(manager: KVCacheManager) -> Iterator[Tensor]:
    for pool in manager.pools.values():
        yield pool.main.pages
        if pool.indexer:
            yield pool.indexer.pages
    for states in manager.states.values():
        yield from (ring.pages for ring in states.windows)
        yield from states.states()


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
