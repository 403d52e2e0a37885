"""What a cache will launch, known from its plan: modules to compile ahead.

Made by the launch plans themselves, on tensors without data. A module that is not foreseen costs
only time: it is compiled at its first launch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.schedule import AttentionType, chooses_candidates, scores_candidates
from dsv4kv.model.schema import LayerCacheSchema, TableGroup
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.kernels import attend, topk
from dsv4kv.ops.kernels.gather import plan_gather_all, plan_gather_topk, plan_gather_window
from dsv4kv.ops.kernels.insert import (
    plan_entry_insert,
    plan_indexer_insert,
    plan_window_insert,
)
from dsv4kv.ops.kernels.launch import KernelModule, Launch
from dsv4kv.ops.kernels.prepare import (
    MOST_REQUESTS,
    DeviceTable,
    plan_completed,
    plan_prepare,
    plan_release,
)
from dsv4kv.ops.kernels.scores import plan_index_scores, plan_indexer_query
from dsv4kv.ops.kernels.state import (
    example_step_write,
    plan_compress_chunk,
    plan_flush,
    plan_norm_rope_insert,
    plan_state_append,
)
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import VARIANTS, Choice, portable

_META = torch.device("meta")


def foresee(
    plan: CachePlan,
    *,
    device_prepare: bool,
    variants: Choice | None = None,
    reads: bool = False,
) -> list[KernelModule]:
    """Modules of what prompt chunks and decode steps launch on a cache.

    device_prepare: kernels keep its block tables, too.
    variants: of the operations; None takes what every GPU has.
    reads: Decode steps score, choose and attend in the pages, as engines do, and gather no
        windows; on an H200.
    """
    variants = variants or {name: portable(name) for name in VARIANTS}
    launches: list[Launch] = []
    for schema in _distinct(plan):
        launches += _window_launches(schema, variants, gathered=not reads)
        launches += _entry_launches(plan, schema, variants)
        step = example_step_write(plan.config, schema, rope=plan.rope, hadamard=plan.hadamard)
        if step and variants["step_write"] == "fused":
            launches.append(step)
    if reads:
        for schema, owner in _distinct_readers(plan):
            launches += _read_launches(plan, schema, owner, variants)
    launches += _table_launches(plan, device_prepare)
    return list(dict.fromkeys(launch.module for launch in launches))


def _distinct(plan: CachePlan) -> list[LayerCacheSchema]:
    """One layer of each kind: those of a kind have one schema."""
    kinds = {(s.layer.attn, s.layer.ratio, s.layer.owns_kv): s for s in plan.schemas}
    return list(kinds.values())


def _distinct_readers(plan: CachePlan) -> list[tuple[LayerCacheSchema, LayerCacheSchema]]:
    """One layer of each kind that reads alike, and whose entries it reads."""
    config, held = plan.config, {s.layer.layer_idx: s for s in plan.schemas}
    kinds = {}
    for schema in plan.schemas:
        spec, owner = schema.layer, held[schema.layer.kv_owner]
        among = chooses_candidates(config, spec), scores_candidates(config, spec)
        kinds[spec.attn, spec.selects, owner.main, *among] = schema, owner
    return list(kinds.values())


def _window_launches(
    schema: LayerCacheSchema, variants: Choice, *, gathered: bool
) -> Iterator[Launch]:
    if schema.window:
        ring, one = PageStore.allocate(schema.window, 1, _META), _numbers(1)
        values = _rows(schema.window)
        yield plan_window_insert(ring, values, one, one, variant=variants["window_insert"])
        if gathered:
            window = variants["gather_window"]
            yield plan_gather_window(ring, one, one, values[None], variant=window)


def _entry_launches(
    plan: CachePlan, schema: LayerCacheSchema, variants: Choice
) -> Iterator[Launch]:
    """Entries of compressed KV and of an indexer."""
    for layout, shape, indexer in (
        (schema.main, schema.state_shape, False),
        (schema.indexer, schema.indexer_state_shape, True),
    ):
        if not layout:
            continue
        store, one, out = PageStore.allocate(layout, 1, _META), _numbers(1), _rows(layout)
        yield plan_entry_insert(store, out, one, variant=variants["entry_insert"])
        yield from _gather_launches(
            store, out[None], variants, chosen=bool(schema.indexer) and not indexer
        )
        if schema.layer.attn is AttentionType.DSA:
            if indexer:
                yield plan_indexer_insert(store, out, one, plan.hadamard)
            continue
        compressor = random_compressor(
            plan.config,
            schema.layer,
            torch.Generator(),
            rope=make_rope(plan.config, schema.layer.ratio, schema.layer.ratio, plan.rope),
            indexer=indexer,
            hadamard=indexer and plan.hadamard,
        )
        if shape:
            yield from _state_launches(compressor, _floats(1, *shape), store, variants)
        else:
            yield plan_norm_rope_insert(compressor, out, one, store, one)


def _gather_launches(
    store: PageStore, out: Tensor, variants: Choice, *, chosen: bool
) -> Iterator[Launch]:
    """chosen: some of the entries are read by index, too."""
    table, one = _numbers(1, 1), _numbers(1)
    yield plan_gather_all(store, table, one, one, out, variant=variants["gather_all"])
    if chosen:
        topk = variants["gather_topk"]
        yield plan_gather_topk(store, table, one, table, one, out, variant=topk)


def _state_launches(
    compressor: Compressor, state: Tensor, store: PageStore, variants: Choice
) -> Iterator[Launch]:
    one, tokens = _numbers(1), _floats(1, compressor.channels)
    yield plan_state_append(compressor, state, tokens, tokens, one, one)
    flush, chunk = variants["flush"], variants["compress_chunk"]
    yield from plan_flush(compressor, state, one, one, store, one, variant=flush)
    numbers = tokens, tokens, _numbers(3), store, one
    yield from plan_compress_chunk(compressor, state, *numbers, variant=chunk)


def _read_launches(
    plan: CachePlan, schema: LayerCacheSchema, owner: LayerCacheSchema, variants: Choice
) -> Iterator[Launch]:
    """From an indexer's query to attention, of a layer with window; see ``ops.contract``."""
    config, spec, one = plan.config, schema.layer, _numbers(1)
    table, choices = (torch.empty(1, 1, dtype=torch.int32, device=_META) for _ in range(2))
    if owner.indexer and owner.main and spec.selects:
        scores, vectors = _floats(1, topk.RUN), _rows(owner.indexer)
        heads = vectors[:, None].expand(1, config.index_heads, -1)
        codes, weights = heads.to(torch.uint8), _floats(1, config.index_heads)
        turns = _floats(1, config.rope_dim)
        yield plan_indexer_query(heads, weights, turns, plan.hadamard, codes, weights)
        keys = PageStore.allocate(owner.indexer, 1, _META)
        yield plan_index_scores(keys, table, one, one, codes, weights, None, scores)
        size = config.candidates.block_entries if config.candidates else 1
        if chooses_candidates(config, spec):
            yield from topk.plan_select_blocks(scores, one, size, choices)
        blocks = torch.empty(1, topk.RUN // size, dtype=torch.int32, device=_META)
        among = blocks if scores_candidates(config, spec) else None
        chosen = table, one, owner.main.entries, choices, choices
        yield from topk.plan_select_topk(scores, one, among, *chosen)
    if schema.window:
        ring, entries = PageStore.allocate(schema.window, 1, _META), None
        if owner.main:
            store = PageStore.allocate(owner.main, 1, _META)
            every = spec.attn is AttentionType.HCA
            entries = Entries(store, table, one, None if every else choices)
        queries = _rows(schema.window)[:, None].expand(1, config.num_heads, -1)
        sums = _floats(1, config.num_heads)
        given = ring, one, one, config.window_tokens, entries, queries, sums[0], 1.0
        how = variants["attend"]
        yield from attend.plan_attend(*given, queries, sums, variant=how, parts=2)


def _table_launches(plan: CachePlan, device_prepare: bool) -> Iterator[Launch]:
    tables, one = {group: _table(plan, group) for group in plan.groups}, _numbers(1)
    for schema in _distinct(plan):
        if group := plan.group_of(schema.layer.layer_idx):
            sizes = schema.layer.ratio, schema.entries_per_block
            yield plan_completed(tables[group].cells, *sizes, one, one, one[None])
    if device_prepare:
        yield from plan_release(list(tables.values()), one)
        most = min(plan.num_slots, MOST_REQUESTS)
        for requests in (*(1 << i for i in range(most.bit_length())), most):  # of every graph
            slots = _numbers(requests)
            yield from plan_prepare(list(tables.values()), slots, slots)


def _table(plan: CachePlan, group: TableGroup) -> DeviceTable:
    """Not ``allocate``, whose ``arange`` without data makes torch import sympy, for 0.3 s."""
    width, blocks = group.blocks_for(plan.max_context_tokens), plan.num_blocks[group.name]
    return DeviceTable(
        group,
        plan.max_context_tokens,
        cells=_numbers(group.lanes, plan.num_slots, width),
        held=_numbers(plan.num_slots),
        free=_numbers(group.lanes, blocks),
        num_free=_numbers(1),
        status=_numbers(2),
    )


def _rows(layout: PageLayout) -> Tensor:
    return torch.empty(1, layout.format.dims, dtype=torch.bfloat16, device=_META)


def _numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=_META)


def _floats(*shape: int) -> Tensor:
    return torch.empty(shape, device=_META)
