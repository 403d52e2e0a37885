"""The cache manager: request slots, block tables and pools of a whole (or partial) model.

Host arrays hold the truth about positions and blocks; nothing here reads from a device.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.errors import CacheError, ConfigError, ContextOverflow, OutOfBlocks, OutOfSlots
from dsv4kv.model.config import AttentionType, DSV4Config, keyed_layers, scores_candidates
from dsv4kv.model.plan import CachePlan, LayerCacheSchema, TableGroup
from dsv4kv.ops.spec import Backend
from dsv4kv.ops.storage import Compressor, PageStore

NO_BLOCK = -1
Cells = tuple[Ids, Ids]
"""Rows and columns."""


class BlockTable:
    """Blocks held by every slot, and the free blocks after them."""

    def __init__(
        self, group: TableGroup, num_blocks: int, num_slots: int, max_context_tokens: int
    ) -> None:
        """Build an empty table whose rows can hold ``max_context_tokens`` tokens."""
        self.group = group
        self.allocator = BlockPool(num_blocks)
        width = group.blocks_for(max_context_tokens)
        # the same ids in every lane; ``NO_BLOCK`` beyond what is held
        self.blocks = np.full((group.lanes, num_slots, width), NO_BLOCK, dtype=np.int32)
        self.held = np.zeros(num_slots, dtype=np.int64)  # blocks of each slot
        # written since they were last copied to the device; None without such a copy
        self.changes: list[Cells] | None = None
        block_tokens = group.ratio * group.entries_per_block
        # arrays, with which numpy is twice as fast as with Python's numbers
        self._rounding = np.array(block_tokens - group.ratio)
        self._block_tokens = np.array(block_tokens)

    def blocks_for(self, tokens: Ids) -> Ids:
        """Blocks that hold every complete entry of ``tokens``, as the group's."""
        needed: Ids = (tokens + self._rounding) // self._block_tokens
        return needed

    def missing(self, slots: Ids, needed: Ids) -> Ids:
        """Blocks each slot lacks, int64[B], negative where it holds too many. Changes nothing.

        Raises:
            OutOfBlocks: More are lacking than are free or become so by the same change; a block
                that is given back and is another request's, too, does not.
        """
        lacking: Ids = needed - self.held[slots]
        if not np.count_nonzero(lacking):
            return lacking
        short = int(np.add.reduce(np.maximum(lacking, 0))) - self.allocator.num_free
        if short > 0:
            rows, columns = self._surplus(slots, lacking)
            short -= self.allocator.num_freed(self.blocks[0, rows, columns])
        if short > 0:
            raise OutOfBlocks(
                f"the step needs {short} blocks more than the {self.allocator.num_free} free of "
                f"{self.allocator.num_blocks}: raise cache.num_blocks, or lower concurrency or "
                "context. Nothing was changed."
            )
        return lacking

    def change(self, slots: Ids, lacking: Ids) -> None:
        """Give back, then take what ``missing`` returned."""
        if not np.count_nonzero(lacking):
            return
        held, growth = self.held[slots], lacking
        if np.count_nonzero(lacking < 0):
            rows, columns = self._surplus(slots, lacking)
            self.allocator.release(self.blocks[0, rows, columns])
            self.blocks[:, rows, columns] = NO_BLOCK
            self._note(rows, columns)
            growth = np.maximum(lacking, 0)
        if np.count_nonzero(growth):
            rows, columns = _cells(slots, held, growth)
            self.blocks[:, rows, columns] = self.allocator.acquire(len(rows))
            self._note(rows, columns)
        self.held[slots] = held + lacking

    def adopt(self, slot: int, blocks: Ids) -> None:
        """Let a slot hold blocks int64[n], whose references count it, after those it holds."""
        held = int(self.held[slot])
        end = held + len(blocks)
        self.blocks[:, slot, held:end] = blocks
        self._note(np.full(len(blocks), slot), np.arange(held, end))
        self.held[slot] = end

    def clear(self, slot: int) -> None:
        held = int(self.held[slot])
        if not held:
            return
        self.allocator.release(self.blocks[0, slot, :held])
        self.blocks[:, slot, :held] = NO_BLOCK
        self._note(np.full(held, slot), np.arange(held))
        self.held[slot] = 0

    def _surplus(self, slots: Ids, lacking: Ids) -> Cells:
        surplus = np.maximum(-lacking, 0)
        return _cells(slots, self.held[slots] - surplus, surplus)

    def _note(self, rows: Ids, columns: Ids) -> None:
        if self.changes is not None:
            self.changes.append((rows, columns))


def _cells(slots: Ids, starts: Ids, counts: Ids) -> Cells:
    """Cells (row, column) of ``counts`` columns from ``starts`` on in every row."""
    rows = slots.repeat(counts)
    firsts = starts - counts.cumsum() + counts
    return rows, np.arange(rows.size) + firsts.repeat(counts)


def stage(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device without waiting for it.

    A GPU copies from a pinned buffer that torch does not reuse before the copy is done, so
    ``numbers`` may change immediately.
    """
    if device.type == "cuda":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device, copy=True)


class DeviceTables:
    """Copies of the host's block tables on a device."""

    cells: dict[BlockTable, Tensor]
    """By host table, int32[lanes, slots, width] on the device; never moves."""

    def __init__(self, tables: Sequence[BlockTable], device: torch.device) -> None:
        """Copy every table once; from then on they note what changes."""
        self._device = device
        self.cells = {}
        for table in tables:
            table.changes = []
            self.cells[table] = stage(torch.from_numpy(table.blocks), device)

    def publish(self) -> None:
        """Copy the cells that changed as they are now, in one transfer for each table."""
        for table, copy in self.cells.items():
            if not table.changes:
                continue
            rows, columns = (np.concatenate(each) for each in zip(*table.changes, strict=True))
            table.changes = []
            lanes, slots, width = table.blocks.shape
            lane_starts = np.arange(lanes)[:, None] * (slots * width)
            cells = (lane_starts + rows * width + columns).ravel()
            delta = np.stack([cells, table.blocks.reshape(-1)[cells]])
            index, blocks = stage(torch.from_numpy(delta), self._device)
            copy.view(-1).index_copy_(0, index, blocks.int())

    def check(self) -> None:
        """Raise ``CacheError`` unless the device's tables are the host's; waits for the device."""
        self.publish()
        for table, cells in self.cells.items():
            differing = np.argwhere(cells.cpu().numpy() != table.blocks)
            if len(differing):
                lane, slot, column = differing[0]
                found = int(cells[lane, slot, column])
                raise CacheError(
                    f"{len(differing)} cells of table {table.group.name} on the device are not "
                    f"the host's, first lane {lane}, slot {slot}, column {column}: {found} "
                    f"instead of {table.blocks[lane, slot, column]}."
                )


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
        shapes = [schema.state_shape for schema in schemas if schema.state_shape]
        self.state = _allocate(shapes, max_requests, device)
        shapes = [each.indexer_state_shape for each in schemas if each.indexer_state_shape]
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
        return [state for state in (self.state, self.indexer_state) if state is not None]


def _allocate(
    shapes: Sequence[tuple[int, ...]], slots: int, device: torch.device
) -> Tensor | None:
    """States of layers, all of one shape."""
    return torch.empty(len(shapes), slots, *shapes[0], device=device) if shapes else None


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

    def check_running(self, slots: Ids) -> None:
        """Raise ``NotOwner`` unless a request runs in every slot and none is named twice."""
        self._slots.check_held(slots)

    def view(self, table: BlockTable, layer_idx: int) -> torch.Tensor:
        """int32[slots, width]: a layer's block table where its pools are; never moves."""
        lane = table.group.lane_of(layer_idx)
        if self.device_tables is None:
            return torch.from_numpy(table.blocks[lane])
        return self.device_tables.cells[table][lane]

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
    lacking = [table.missing(slots, table.blocks_for(after)) for table in manager.tables]
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


@dataclass(frozen=True)
class CompressedCache:
    """Entries of one kind in one layer, and how they come to be."""

    store: PageStore  # pages of the entries
    ratio: int  # tokens of an entry
    # parameters; None where entries are stored as they are given (DeepSeek-V3.2)
    compressor: Compressor | None
    # compressor state of every slot; None where an entry is of one value, which nothing is pooled
    # with (DeepSeek-V4.1's keys, and its entries where the ratio is 1)
    state: Tensor | None

    @property
    def is_pooled(self) -> bool:
        return self.state is not None


@dataclass(frozen=True)
class LayerCache:
    """Everything of one layer that stays the same from step to step.

    Nothing in it ever moves, so a captured graph may keep the addresses.
    """

    model: DSV4Config  # facts of the model
    schema: LayerCacheSchema  # layout of the layer
    backend: Backend  # operations
    window: PageStore | None  # ring of every slot; None without window (DeepSeek-V3.2)
    # compressed KV that the layer reads, its own or its owner's; None without any
    main: CompressedCache | None
    # indexer keys that it reads likewise; None where it selects no entries by them
    indexer: CompressedCache | None
    table: BlockTable | None  # block table of these; None without compressed KV
    blocks: Tensor | None  # int32[slots, width], the layer's view of the table
    lane: int  # the layer's lane in the table
    hadamard: bool = False  # indexer keys that are stored as they are given are rotated

    @cached_property
    def parts(self) -> list[bool]:
        """Compressed KV (False) and indexer keys (True), as far as the layer writes them."""
        if not self.schema.layer.owns_kv:
            return []
        return [i for i, part in ((False, self.main), (True, self.indexer)) if part is not None]

    def part(self, indexer: bool) -> CompressedCache:
        """Compressed KV, or the indexer keys; raises ``ConfigError`` where there are none."""
        part = self.indexer if indexer else self.main
        if part is None:
            spec, what = self.schema.layer, "indexer" if indexer else "compressed KV"
            raise ConfigError(f"layer {spec.layer_idx} ({spec.attn}) has no {what}.")
        return part

    @cached_property
    def pooled_parts(self) -> list[bool]:
        """The ``parts`` that are pooled from a state."""
        return [indexer for indexer in self.parts if self.part(indexer).is_pooled]

    @cached_property
    def is_narrow(self) -> bool:
        """Whether it scores candidate blocks alone."""
        return scores_candidates(self.model, self.schema.layer)

    @cached_property
    def group(self) -> EntryGroup | None:
        """What decides which entries of a step are its own here; None without compressed KV."""
        if self.table is None or self.main is None:
            return None
        return self.table, self.lane, self.main.ratio, self.main.store.layout.entries


Compressors = dict[int, tuple[Compressor, Compressor | None]]
"""Compressor and indexer's compressor of every layer that owns compressed KV and has one."""


def build_layers(
    manager: KVCacheManager, backend: Backend, compressors: Compressors
) -> dict[int, LayerCache]:
    """Bind every layer held to its memory and to operations, by index; raises ``ConfigError``."""
    plan = manager.plan
    if plan.schemas and not manager.states:
        raise ConfigError(f"{plan.config.name} has no data here: workload.data is none.")
    left: dict[AttentionType, list[Iterator[Any]]] = {}
    for attn, pool in manager.states.items():
        states = (() if each is None else each for each in (pool.state, pool.indexer_state))
        left[attn] = [iter(pool.windows), *map(iter, states)]
    layers: dict[int, LayerCache] = {}
    keyed = keyed_layers(schema.layer for schema in plan.schemas)
    for schema in plan.schemas:
        spec, main, keys, table, blocks = schema.layer, None, None, None, None
        windows, main_states, keys_states = left[spec.attn]
        if spec.owns_kv:
            pages = manager.pools[spec.layer_idx]
            table = next(each for each in manager.tables if spec.layer_idx in each.group.layers)
            blocks = manager.view(table, spec.layer_idx)
            compressor, keys_compressor = compressors.get(spec.layer_idx, (None, None))
            state = next(main_states) if schema.state_shape else None
            main = CompressedCache(pages.main, spec.ratio, compressor, state)
            state = next(keys_states) if schema.indexer_state_shape else None
            if pages.indexer and spec.layer_idx in keyed:
                keys = CompressedCache(pages.indexer, spec.ratio, keys_compressor, state)
        elif spec.ratio:  # the entries of another, whose keys it reads where it selects by them
            owner = layers[spec.kv_owner]
            main, table, blocks = owner.main, owner.table, owner.blocks
            keys = owner.indexer if spec.selects else None
        layers[spec.layer_idx] = LayerCache(
            model=plan.config,
            schema=schema,
            backend=backend,
            window=next(windows) if schema.window else None,
            main=main,
            indexer=keys,
            table=table,
            blocks=blocks,
            lane=table.group.lane_of(spec.kv_owner) if table else 0,
            hadamard=plan.hadamard,
        )
    return layers
