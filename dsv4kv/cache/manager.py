"""The cache manager: request slots, block tables and pools of a whole (or partial) model.

Host arrays hold the truth about positions and blocks; nothing here reads from a device.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.cache.tables import BlockTable, DeviceTables
from dsv4kv.errors import CacheError, ContextOverflow, OutOfSlots
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import CachePlan, LayerCacheSchema
from dsv4kv.ops.storage import PageStore

EntryGroup = tuple[BlockTable, int, int, int]
"""Table, lane, ratio and entries per block: layers that agree in them write the same entries."""


class PagedKVPool:
    """Compressed entries of one layer and, under the same block ids, its indexer keys."""

    def __init__(self, schema: LayerCacheSchema, num_blocks: int, device: torch.device) -> None:
        """Allocate the pages of a layer that owns compressed KV."""
        assert schema.main is not None
        self.main = PageStore.allocate(schema.main, num_blocks, device)
        self.indexer = (
            PageStore.allocate(schema.indexer, num_blocks, device) if schema.indexer else None
        )


class StateCachePool:
    """Window rings and compressor states of all layers of one type.

    A ring has a page for each slot. States are float32[layers, slots, …] of the layers that have
    one, or None; in one tensor, so that a slot is reset in all layers together.
    """

    def __init__(
        self, schemas: Sequence[LayerCacheSchema], max_requests: int, device: torch.device
    ) -> None:
        """Allocate for layers of one type; all slots start fresh."""
        self.windows = [
            PageStore.allocate(schema.window, max_requests, device)
            for schema in schemas
            if schema.window
        ]
        shapes = [schema.state_shape for schema in schemas]
        self.state = _allocate(shapes, max_requests, device)
        shapes = [schema.indexer_state_shape for schema in schemas]
        self.indexer_state = _allocate(shapes, max_requests, device)
        for slot in range(max_requests):
            self.reset_slot(slot)

    def reset_slot(self, slot: int) -> None:
        """Forget a slot's tokens in every layer: scores −inf, sums 0."""
        for state in (self.state, self.indexer_state):
            if state is not None:
                # Ring: (kv, score). Online: (max, denominator, weighted sum).
                scores = 1 if state.dim() == 5 else 0
                state[:, slot] = 0.0
                state[:, slot, scores] = -math.inf

    def states(self) -> list[Tensor]:
        """The compressor states there are."""
        return [state for state in (self.state, self.indexer_state) if state is not None]


def _allocate(
    shapes: Sequence[tuple[int, ...]], slots: int, device: torch.device
) -> Tensor | None:
    """States of the layers that have one; theirs is one shape."""
    held = [shape for shape in shapes if shape]
    return torch.empty(len(held), slots, *held[0], device=device) if held else None


class KVCacheManager:
    """Owns every pool and table of one cache."""

    def __init__(
        self,
        plan: CachePlan,
        device: torch.device | str = "cpu",
        *,
        data: bool = True,
        copies_tables: bool = False,
    ) -> None:
        """Allocate the cache; without ``data`` only its bookkeeping, which is the same.

        ``copies_tables``: whether block tables are copied to the device, as where it is a GPU.
        """
        self.plan = plan
        self.device = torch.device(device)
        self.tables = tuple(
            BlockTable(group, plan.num_blocks[group.name], plan.num_slots, plan.max_context_tokens)
            for group in plan.groups
        )
        # tokens of every running request as last prepared; 0 without one
        self.tokens: NDArray[np.int64] = np.zeros(plan.num_slots, dtype=np.int64)
        self._slots = BlockPool(plan.num_slots, unit="slots")
        self.pools: dict[int, PagedKVPool] = {}  # of layers that own compressed KV
        self.states: dict[AttentionType, StateCachePool] = {}  # windows, and compressors' states
        self.device_tables: DeviceTables | None = None  # None in the host's memory
        # what decides which entries of a step are a layer's own, each once
        self.entry_groups: list[EntryGroup] = list(
            dict.fromkeys(
                (table, table.group.lane_of(idx), schema.layer.ratio, schema.entries_per_block)
                for table in self.tables
                for schema in plan.schemas
                if (idx := schema.layer.layer_idx) in table.group.layers
            )
        )
        if not data:
            return
        for schema in plan.schemas:
            if group := plan.group_of(schema.layer.layer_idx):
                blocks = plan.num_blocks[group.name]
                self.pools[schema.layer.layer_idx] = PagedKVPool(schema, blocks, self.device)
        for attn in dict.fromkeys(schema.layer.attn for schema in plan.schemas):
            alike = [schema for schema in plan.schemas if schema.layer.attn is attn]
            self.states[attn] = StateCachePool(alike, plan.num_slots, self.device)
        if copies_tables:
            self.device_tables = DeviceTables(self.tables, self.device)

    @property
    def num_free_slots(self) -> int:
        """Slots for further requests."""
        return self._slots.num_free

    @property
    def num_held_blocks(self) -> int:
        """Blocks held by requests, all tables and lanes together."""
        return sum(table.allocator.num_held * table.group.lanes for table in self.tables)

    def admit_request(self) -> int:
        """Take a slot for a request and reset its states; raises ``OutOfSlots``."""
        if not self._slots.num_free:
            raise OutOfSlots(
                f"all {self.plan.num_slots} slots are taken: raise cache.num_slots, or lower "
                "concurrency."
            )
        slot = int(self._slots.acquire(1)[0])
        for states in self.states.values():
            states.reset_slot(slot)
        return slot

    def release_request(self, slot: int, generation: int) -> None:
        """Give back a request's slot and blocks.

        Raises ``NotOwner`` unless a request runs in the slot that was admitted in this generation.
        """
        self._slots.release(np.array([slot], dtype=np.int64), np.array([generation]))
        for table in self.tables:
            table.clear(slot)
        self.tokens[slot] = 0

    def generation(self, slot: int) -> int:
        """Generation of a slot: grows with every request admitted to it."""
        return int(self._slots.generation(np.array([slot]))[0])

    def generations(self, slots: Ids) -> Ids:
        """Generations of slots, int64 like ``slots``."""
        return self._slots.generation(slots)

    def check_running(self, slots: Ids) -> None:
        """Raise ``NotOwner`` unless a request runs in every slot and none is named twice."""
        self._slots.check_held(slots)

    def view(self, table: BlockTable, layer_idx: int) -> torch.Tensor:
        """int32[slots, width]: a layer's block table where its pools are; never moves."""
        if self.device_tables is None:
            return table.view(layer_idx)
        return self.device_tables.cells[table][table.group.lane_of(layer_idx)]

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """All tensors of the cache but block tables, with pool name and layer type."""
        kinds = {s.layer.layer_idx: s.layer.attn.value for s in self.plan.schemas}
        for layer, pool in self.pools.items():
            yield "main", kinds[layer], pool.main.pages
            if pool.indexer:
                yield "indexer", kinds[layer], pool.indexer.pages
        for attn, states in self.states.items():
            yield from (("window", attn.value, ring.pages) for ring in states.windows)
            yield from (("state", attn.value, state) for state in states.states())

    def memory_by_pool(self) -> dict[tuple[str, str, int], int]:
        """Bytes allocated by (pool name, layer type, bytes of a block or slot) as in the plan."""
        found: Counter[tuple[str, str, int]] = Counter()
        slots = Counter[str]()  # bytes of all states of a slot, by layer type
        for name, kind, tensor in self.tensors():
            slots[kind] += tensor[0, 0].nbytes if name == "state" else 0
        for name, kind, tensor in self.tensors():
            found[name, kind, slots[kind] if name == "state" else tensor.shape[1]] += tensor.nbytes
        if tables := sum(table.blocks.nbytes for table in self.tables):
            found["tables", "all", tables // self.plan.num_slots] += tables
        return dict(found)


def prepare_forward(
    manager: KVCacheManager,
    request_slots: ArrayLike,
    positions_before: ArrayLike,
    positions_after: ArrayLike,
) -> None:
    """Allocate or give back blocks so that ``positions_after`` tokens of each request fit.

    All are int64[B], of distinct slots. Blocks follow from the tokens alone: preparing a step
    twice changes nothing, fewer tokens than before roll back, and a request that resumes with
    nothing held gets all its blocks.

    Raises:
        OutOfBlocks: The blocks of all requests do not fit; a block given back that another
            request holds is not free.
        ContextOverflow: A request would outgrow its table row.
        NotOwner: No request runs in a slot. Nothing has changed, as in every case.
    """
    slots, before, after = (
        np.asarray(values, dtype=np.int64)
        for values in (request_slots, positions_before, positions_after)
    )
    _check(manager, slots, before, after)
    lacking = [table.missing(slots, table.group.blocks_for(after)) for table in manager.tables]
    for table, blocks in zip(manager.tables, lacking, strict=True):
        table.change(slots, blocks)
    manager.tokens[slots] = after


def _check(manager: KVCacheManager, slots: Ids, before: Ids, after: Ids) -> None:
    if not slots.shape == before.shape == after.shape or slots.ndim != 1:
        raise CacheError(
            f"slots {slots.shape}, positions before {before.shape} and after {after.shape} "
            "must be three lists of one length."
        )
    if not slots.size:
        return
    manager.check_running(slots)
    limit = manager.plan.max_context_tokens
    # One look at both: their bits together are no less than either, and negative ones are huge.
    if int(np.maximum.reduce((before | after).view(np.uint64))) <= limit:
        return
    if np.count_nonzero((before | after) < 0):
        raise CacheError("a request cannot have fewer than 0 tokens.")
    longest = int(np.maximum.reduce(after))
    if longest > limit:
        raise ContextOverflow(
            f"a request would have {longest} tokens and a table row holds {limit}: raise "
            "cache.max_context_tokens. Nothing was changed."
        )
