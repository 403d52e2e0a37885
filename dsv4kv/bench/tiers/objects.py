"""The bytes of a live cache as rows and objects of families: gathered, put back, compared.

On a CPU the pools are read and written where they are, states looked at as bytes. On a GPU one
launch gathers all layers of a family into a buffer, which is copied as a whole to pinned memory of
the host.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.bench.tiers.rows import geometry_of, rows_needed, stretches
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.plan import Family, Kept, families_in
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches.pages import Way, plan_objects, pool_table

Objects = NDArray[np.uint8]
"""uint8[n, layers, piece_bytes]: n objects of a family, each contiguous."""


class CacheBytes:
    """Objects of the families of a cache that has data, by the families' names."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.families = {family.name: family for family in families_in(manager.plan.schemas)}
        # uint8[blocks or slots, piece_bytes] of every layer: the cache's memory
        self.pools = {name: _pools(manager, each) for name, each in self.families.items()}
        self.by_launches = manager.device.type != "cpu"
        self._buffer = torch.empty(0, dtype=torch.uint8, device=manager.device)

    def new_objects(self, family: Family, count: int) -> Objects:
        """Room on the host for objects, pinned for a GPU."""
        size, pinned = count * family.object_bytes, self.manager.device.type == "cuda"
        room: Objects = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy()
        return room.reshape(count, *family.object_shape)

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
        """Gather objects from the cache: ``ids`` int64[layers, n], as ``units`` gives them."""
        if self.by_launches:
            self._move("take", family, ids, into)
            return
        for layer, pool in enumerate(self.pools[family.name]):
            into[:, layer] = pool.numpy()[ids[layer]]

    def put(self, family: Family, ids: Ids, data: Objects) -> None:
        """Put objects into the cache: the inverse of ``take``."""
        if self.by_launches:
            self._move("put", family, ids, data)
            return
        for layer, pool in enumerate(self.pools[family.name]):
            pool.numpy()[ids[layer]] = data[:, layer]

    def _move(self, way: Way, family: Family, ids: Ids, objects: Objects) -> None:
        """Move objects through a buffer next to the cache; one thread at a time."""
        assert objects.flags.c_contiguous
        host, device = torch.from_numpy(objects.reshape(-1)), self.manager.device
        if not len(host):
            return
        numbers = torch.from_numpy(np.ascontiguousarray(ids)).to(device)
        if len(self._buffer) < len(host):
            self._buffer = torch.empty_like(host, device=device)
        table, buffer = pool_table(self.pools[family.name]), self._buffer[: len(host)]
        sizes = family.piece_bytes, family.object_bytes
        launch = plan_objects(way, table, numbers, buffer, *sizes)
        if way == "take":
            run(launch)
            host.copy_(buffer, non_blocking=True)
        else:
            buffer.copy_(host, non_blocking=True)
            run(launch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


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


def differences(
    left: CacheBytes, left_slot: int, right: CacheBytes, right_slot: int, tokens: int
) -> list[str]:
    """A sentence for every family in which two requests of one prompt do not hold the same bits.

    Compared is what the next tokens can read, by its logical position: entries that are complete,
    the window, and of a state the rows that a group still pools. The rest of pages and rings is
    padding, or left from earlier tokens. Both requests have ``tokens`` tokens.
    """
    found, window_tokens = [], left.manager.plan.config.window_tokens
    for family in left.families.values():
        count, geometry = family.objects(tokens), geometry_of(family)
        both = [np.zeros((count, *family.object_shape), dtype=np.uint8) for _ in range(2)]
        for cache, slot, data in ((left, left_slot, both[0]), (right, right_slot, both[1])):
            cache.take(family, cache.units(family, slot, tokens), data)
        alive = np.zeros(count * family.piece_bytes, dtype=np.bool_)
        for part in stretches(
            geometry, np.arange(count), rows_needed(family, tokens, window_tokens)
        ):
            alive[part] = True
        differ = (both[0] != both[1]) & alive.reshape(count, 1, family.piece_bytes)
        wrong = np.argwhere(differ.any(axis=2))
        if len(wrong):
            number, layer = wrong[0].tolist()
            found.append(
                f"{family.name}: object {number} of layer {family.layers[layer]} differs after "
                f"{tokens} tokens, and {len(wrong) - 1} other pieces."
            )
    return found
