"""The bytes of a live cache as objects: gathered from its pools, and put back.

On a CPU the pools are read and written where they are, states looked at as bytes. On a GPU a
``Mover`` gathers all layers of a family at once.
"""

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.tiers.device import Objects, mover_of
from dsv4kv.tiers.families import Family, Kept, families_of
from dsv4kv.tiers.stores.lanes import aligned, round_up


class CacheBytes:
    """Objects of a cache's families.

    Attributes:
        manager: The cache.
        families: Its families by name, as ``families_of`` has them.
        pools: uint8[blocks or slots, piece_bytes] of every layer, by family; the cache's memory.
        mover: Of a cache on a GPU; None on the CPU.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        """Look at the pools of a cache that has data."""
        self.manager = manager
        self.families = {family.name: family for family in families_of(manager.plan)}
        self.pools = {name: _pools(manager, each) for name, each in self.families.items()}
        self.mover = mover_of(manager.device, self.pools)

    def new_objects(self, family: Family, count: int) -> Objects:
        """Room on the host for objects, each from a page's beginning on, as files want them."""
        stride = round_up(family.object_bytes)
        make = self.mover.room if self.mover else aligned
        rows = make(count * stride).reshape(count, stride)[:, : family.object_bytes]
        return rows.reshape(count, *family.object_shape)

    def units(self, family: Family, slot: int, tokens: int) -> Ids:
        """Where a request's objects are: int64[layers, n] blocks, or its slot n times."""
        count = family.objects(tokens)
        if family.kept is not Kept.PAGES:
            return np.full((len(family.layers), count), slot)
        rows = []
        for layer in family.layers:
            table = next(t for t in self.manager.tables if layer in t.group.layers)
            rows.append(table.blocks[table.group.lane_of(layer), slot, :count])
        return np.array(rows, dtype=np.int64)

    def take(self, family: Family, ids: Ids, into: Objects) -> None:
        """Gather objects from the cache.

        Args:
            family: One of ``families``.
            ids: int64[n], blocks for pages and slots for everything else; int64[layers, n] where
                every layer has blocks of its own.
            into: Takes them.
        """
        rows = _by_layer(family, ids)
        if self.mover is not None:
            self.mover.take(family, rows, into)
            return
        for layer, pool in enumerate(self.pools[family.name]):
            into[:, layer] = pool.numpy()[rows[layer]]

    def put(self, family: Family, ids: Ids, data: Objects) -> None:
        """Put objects into the cache: the inverse of ``take``."""
        rows = _by_layer(family, ids)
        if self.mover is not None:
            self.mover.put(family, rows, data)
            return
        for layer, pool in enumerate(self.pools[family.name]):
            pool.numpy()[rows[layer]] = data[:, layer]


def _by_layer(family: Family, ids: Ids) -> Ids:
    """Blocks or slots of every layer: int64[layers, n]."""
    return np.array(np.broadcast_to(ids, (len(family.layers), ids.shape[-1])), order="C")


def _pools(manager: KVCacheManager, family: Family) -> list[Tensor]:
    """Pool of every layer as uint8[blocks or slots, piece_bytes], sharing its memory."""
    if family.part in ("main", "indexer"):
        stores = [getattr(manager.pools[layer], family.part) for layer in family.layers]
        return [store.pages for store in stores]
    by_layer = dict[int, Tensor]()
    for attn, states in manager.states.items():
        schemas = [schema for schema in manager.plan.schemas if schema.layer.attn is attn]
        if family.part == "window":
            having = [schema for schema in schemas if schema.window]
            pieces = [ring.pages for ring in states.windows]
        else:
            having = [schema for schema in schemas if getattr(schema, f"{family.part}_shape")]
            state = getattr(states, family.part)
            pieces = [] if state is None else [x.flatten(1).view(torch.uint8) for x in state]
        by_layer |= {s.layer.layer_idx: x for s, x in zip(having, pieces, strict=True)}
    return [by_layer[layer] for layer in family.layers]
