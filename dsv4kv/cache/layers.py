"""The cache of one layer: its pages, rings, states and table, and the operations that serve it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from dsv4kv.cache.manager import EntryGroup, KVCacheManager
from dsv4kv.cache.tables import BlockTable
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, DSV4Config, keyed_layers, scores_candidates
from dsv4kv.model.plan import LayerCacheSchema
from dsv4kv.ops.spec import Backend
from dsv4kv.ops.storage import Compressor, PageStore


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
        """Whether entries are pooled from a state."""
        return self.state is not None

    @cached_property
    def max_append_tokens(self) -> int:
        """Most tokens of a request between flushes: more would overwrite what a flush reads."""
        assert self.compressor is not None
        assert self.state is not None
        return 1 if self.state.dim() == 3 else self.state.shape[2] - self.compressor.rows + 1


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
