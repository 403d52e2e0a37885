"""Every kernel that the shipped models need, as example launches on tensors without data.

Made by the launch plans themselves: what is compiled and looked at here is what a run launches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config, Precision
from dsv4kv.model.formats import FLAT_FORMATS, PageLayout, entry_format
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, LayerSpec, build_schedule
from dsv4kv.model.schema import LayerCacheSchema, StateFormat, build_schema, table_groups
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.contract import Entries, PartWrite
from dsv4kv.ops.kernels import attend, bandwidth, gather, insert, prepare, scores, state, topk
from dsv4kv.ops.kernels.insert import plan_indexer_insert, plan_page_copy
from dsv4kv.ops.kernels.launch import Launch
from dsv4kv.ops.kernels.prepare import plan_completed
from dsv4kv.ops.kernels.state import plan_step_write
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import VARIANTS, portable

_META = torch.device("meta")


def example_step_write(
    config: DSV4Config,
    schema: LayerCacheSchema,
    *,
    rope: Precision = "float32",
    hadamard: bool = True,
) -> Launch | None:
    """What a decode step of one request writes to a layer; None without compressed KV."""
    if not schema.window or not schema.main or not schema.state_shape:
        return None
    parts = [_part(config, schema, schema.main, schema.state_shape, rope)]
    if schema.indexer and schema.indexer_state_shape:
        keys = schema.indexer, schema.indexer_state_shape
        parts.append(_part(config, schema, *keys, rope, indexer=True, hadamard=hadamard))
    ring, number = PageStore.allocate(schema.window, 1, _META), _number()
    values = torch.empty(1, schema.window.format.dims, dtype=torch.bfloat16, device=_META)
    arrivals = torch.empty(1, dtype=torch.int32, device=_META)
    scratch = _floats(parts[0].compressor.dim)
    return plan_step_write(
        ring, values, number, number, tuple(parts), scratch=scratch, arrivals=arrivals
    )


def _part(
    config: DSV4Config,
    schema: LayerCacheSchema,
    layout: PageLayout,
    shape: tuple[int, ...],
    rope: Precision,
    *,
    indexer: bool = False,
    hadamard: bool = False,
) -> PartWrite:
    ratio = schema.layer.ratio
    compressor = random_compressor(
        config,
        schema.layer,
        torch.Generator(),
        rope=make_rope(config, ratio, ratio, rope),
        indexer=indexer,
        hadamard=hadamard,
    )
    token, store = _floats(compressor.channels), PageStore.allocate(layout, 1, _META)
    return PartWrite(compressor, _floats(*shape), token, token, store, _number())


def _number() -> Tensor:
    return torch.empty(1, dtype=torch.int64, device=_META)


def _floats(*shape: int) -> Tensor:
    return torch.empty(1, *shape, device=_META)


ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
"""A100; H100 and H200; B200; RTX 50."""

_MODELS = ("v4-flash", "v4-pro", "v4.1-flash", "v3.2")
_OTHER_PAGES = {"v4.1-flash": ("fp4_interleaved", "fp8_group32_interleaved")}
"""Of the main entries and of the window, beside a model's own."""
_BOTH_ROPES = "v4-flash"  # the one shown with angles in float64, too
_ALL_FORMATS = "v4-flash"  # the one whose keys are shown in FP8, too
_BLOCK_TOKENS, _LARGE_BLOCK_TOKENS = 128, 256

# Sizes of the tensors, which are arguments and compiled into nothing but prepare's kernels.
_PAGES, _REQUESTS, _CHOICES, _WIDTH, _BYTES = 2, 4, 512, 8, 4096
_BLOCKS, _CONTEXT_TOKENS = 4096, 131_072
_DRAFTS = 3


@dataclass(frozen=True)
class Example:
    """A launch of one kernel and what it works on: ``fp8_ds_mla × 32``, ``csa-4 ring``.

    Where the operation has variants, the subject ends with the one that this is.

    Attributes:
        subject: Formats, sizes and variant.
        launch: What is launched.
        architectures: That it is for; None for all.
    """

    subject: str
    launch: Launch
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what the kernel takes."""
        return self.architectures is None or architecture in self.architectures


def catalogue() -> list[Example]:
    """One example of each kernel of each module, in a fixed order.

    A larger page only changes constants. So blocks have 128 tokens, and 256 in V4-Flash's main
    pages alone; and where layers differ in their ratio only (V4.1), one of them shows its pages.
    """
    found: dict[tuple[object, str], Example] = {}
    for example in _all_examples():
        found.setdefault((example.launch.module, example.launch.kernel), example)
    return list(found.values())


def _all_examples() -> Iterator[Example]:
    for name in _MODELS:
        config = load_model(name)
        shown: set[AttentionType] = set()
        for layer in _distinct_layers(config):
            schema = build_schema(config, layer, block_tokens=_BLOCK_TOKENS)
            if layer.attn not in shown:
                yield from _layer_examples(schema)
                if schema.main and schema.window and name in _OTHER_PAGES:
                    yield from _other_pages(schema.main, schema.window, *_OTHER_PAGES[name])
            yield from _state_examples(config, schema)
            if layer.attn not in shown:
                yield from _read_examples(config, schema)
            shown |= {layer.attn} if layer.owns_kv else set()
    flash = load_model("v4-flash")
    for layer in _distinct_layers(flash):
        main = build_schema(flash, layer, block_tokens=_LARGE_BLOCK_TOKENS).main
        if main:
            yield from _main_examples(main)
    yield from _table_examples(flash)
    yield from _bandwidth_examples()


def _distinct_layers(config: DSV4Config) -> Iterable[LayerSpec]:
    """One layer of each kind: those of a kind have one schema."""
    kinds = {(layer.attn, layer.ratio, layer.owns_kv): layer for layer in build_schedule(config)}
    return kinds.values()


def _layer_examples(schema: LayerCacheSchema) -> Iterator[Example]:
    if schema.window:
        yield from _window_examples(schema.window)
    if schema.main:
        yield from _main_examples(schema.main)
    if schema.indexer:
        store = _store(schema.indexer)
        keys = _values(store, _REQUESTS)
        insertion = plan_indexer_insert(store, keys, _numbers(_REQUESTS), True)
        yield Example(_name(store.layout), insertion)
        yield from _page_examples(schema.indexer)


def _other_pages(
    main: PageLayout, window: PageLayout, main_format: str, window_format: str
) -> Iterator[Example]:
    yield from _main_examples(PageLayout(entry_format("main", main_format), main.entries))
    yield from _window_examples(PageLayout(entry_format("window", window_format), window.entries))


def _state_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    yield from _step_examples(config, schema.layer)
    if schema.layer.attn is AttentionType.DSA:  # is given its entries as they are
        return
    if schema.main:
        yield from _compressor_examples(config, schema, schema.main, indexer=False)
    if schema.indexer:
        yield from _compressor_examples(config, schema, schema.indexer, indexer=True)


def _read_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    """What a decode step reads of a layer; FP8 keys, too, which is what Hopper has of V4."""
    if schema.indexer and schema.main:
        yield from _score_examples(config, schema.indexer)
        yield from _choice_examples(config, schema.main)
    if config.name == _ALL_FORMATS and schema.indexer:
        keys = PageLayout(entry_format("indexer", "fp8"), schema.indexer.entries)
        yield from _score_examples(config, keys)
    if schema.window and (schema.main or config.name == _ALL_FORMATS):
        yield from _attention_examples(config, schema, schema.window)


def _score_examples(config: DSV4Config, layout: PageLayout) -> Iterator[Example]:
    heads, store = config.index_heads, _store(layout)
    weights, queries = (
        _empty(torch.float32, _REQUESTS, heads),
        _empty(torch.uint8, _REQUESTS, heads, config.index_dim),
    )
    vectors = _empty(torch.bfloat16, *queries.shape)
    turns = _empty(torch.float32, _REQUESTS, config.rope_dim)
    query = scores.plan_indexer_query(vectors, weights, turns, True, queries, weights)
    yield Example("with Hadamard", query)
    table, numbers = _empty(torch.int32, _REQUESTS, _WIDTH), _numbers(_REQUESTS)
    out = _empty(torch.float32, _REQUESTS, _WIDTH * layout.entries)
    asked = queries, weights, None, out
    scoring = scores.plan_index_scores(store, table, numbers, numbers, *asked)
    yield Example(f"{_name(layout)}, {heads} heads", scoring)


def _choice_examples(config: DSV4Config, main: PageLayout) -> Iterator[Example]:
    """Rows of several runs; of V4.1 blocks of entries, and entries of some blocks, too."""
    columns, numbers = 2 * topk.RUN, _numbers(_REQUESTS)
    choices = _empty(torch.int32, _REQUESTS, _CHOICES)
    given, scratch = _empty(torch.float32, _REQUESTS, columns), topk.scratch_shape
    table, room = (
        _empty(torch.int32, _REQUESTS, _WIDTH),
        _empty(torch.int32, *scratch(columns, choices)),
    )
    size = config.candidates.block_entries if config.candidates else 0
    for blocks in (0, size) if size else (0,):
        candidates = _empty(torch.int32, _REQUESTS, columns // blocks) if blocks else None
        of = f"of blocks of {blocks}, " if blocks else ""
        pages = table, numbers, main.entries, choices, choices
        for launch in topk.plan_select_topk(given, numbers, candidates, *pages, scratch=room):
            yield Example(f"{of}pages of {main.entries}", launch)
    if size:
        given = _empty(torch.float32, _REQUESTS, columns * size)
        for launch in topk.plan_select_blocks(given, numbers, size, choices, scratch=room):
            yield Example(f"of {size}", launch)


def _attention_examples(
    config: DSV4Config, schema: LayerCacheSchema, window: PageLayout
) -> Iterator[Example]:
    ring, heads, numbers = _store(window), config.num_heads, _numbers(_REQUESTS)
    entries, seen = None, "window"
    if schema.main:
        table, chosen = _empty(torch.int32, _REQUESTS, _WIDTH), None
        seen = "all"
        if schema.indexer:
            chosen, seen = _empty(torch.int32, _REQUESTS, _CHOICES), "chosen"
        entries = Entries(_store(schema.main), table, numbers, chosen)
    queries = _empty(torch.bfloat16, _REQUESTS, heads, window.format.dims)
    sums = _empty(torch.float32, _REQUESTS, heads)
    scratch = _empty(torch.float32, attend.scratch_floats(queries, 2))
    pages = f"{_name(schema.main)}, {seen}" if schema.main else f"{_name(window)}, {seen}"
    for name, shape, architectures in _SHAPES if seen == "chosen" else _SHAPES[:1]:
        reading, merging = attend.plan_attend(
            ring, numbers, numbers, window.entries, entries, queries, sums[0], 1.0, queries, sums,
            shape=shape, parts=2, scratch=scratch,
        )  # fmt: skip
        yield Example(f"{pages}, {name}", reading, architectures)
        yield Example("512 channels", merging)


_SHAPES = (
    ("wide", attend.WIDE, ("sm_90a", "sm_100a")),  # with 227 KiB of shared memory a block
    ("narrow", attend.NARROW, None),
)


def _window_examples(layout: PageLayout) -> Iterator[Example]:
    ring, numbers = _store(layout), _numbers(_REQUESTS)
    out = _values(ring, _REQUESTS, layout.entries)
    for variant in VARIANTS["window_insert"]:
        values = _values(ring, _REQUESTS)
        insertion = insert.plan_window_insert(ring, values, numbers, numbers, variant=variant)
        yield Example(f"{_name(layout)}, {variant}", insertion)
    for variant in VARIANTS["gather_window"]:
        read = gather.plan_gather_window(ring, numbers, numbers, out, variant=variant)
        yield Example(f"{_name(layout)}, {variant}", read)
    yield Example(_name(layout), plan_page_copy(ring, numbers, numbers))


def _main_examples(layout: PageLayout) -> Iterator[Example]:
    store = _store(layout)
    values, numbers = _values(store, _REQUESTS), _numbers(_REQUESTS)
    for variant in reversed(tuple(VARIANTS["entry_insert"])):  # where both are one, it is single
        insertion = insert.plan_entry_insert(store, values, numbers, variant=variant)
        yield Example(f"{_name(layout)}, {variant}", insertion)
    yield from _page_examples(layout)


def _page_examples(layout: PageLayout) -> Iterator[Example]:
    store, numbers = _store(layout), _numbers(_REQUESTS)
    table, choices = (
        _empty(torch.int32, _REQUESTS, _WIDTH),
        _empty(torch.int32, _REQUESTS, _CHOICES),
    )
    out = _values(store, _REQUESTS, _CHOICES)
    for variant in VARIANTS["gather_topk"]:  # those of the other gathers, too
        for launch in (
            gather.plan_gather_topk(store, table, numbers, choices, numbers, out, variant=variant),
            gather.plan_gather_all(store, table, numbers, numbers, out, variant=variant),
            gather.plan_gather_entries(store, choices[0], out[0], variant=variant),
        ):
            yield Example(f"{_name(layout)}, {variant}", launch)
    yield Example(_name(layout), plan_page_copy(store, numbers, numbers))


def _compressor_examples(
    config: DSV4Config, schema: LayerCacheSchema, layout: PageLayout, *, indexer: bool
) -> Iterator[Example]:
    """Append, flush and chunk in every variant; for HCA with both of its states."""
    layer, owner = schema.layer, " indexer" if indexer else ""
    table, exact = (
        random_compressor(
            config,
            layer,
            torch.Generator(),
            rope=make_rope(config, layer.ratio, layer.ratio, precision),
            indexer=indexer,
            hadamard=indexer,
        )
        for precision in get_args(Precision)
    )
    if not (schema.indexer_state_shape if indexer else schema.state_shape):
        numbers, store = _numbers(_REQUESTS), _store(layout)
        kind, values = f"{layer.attn.value}-{layer.ratio}{owner}", _values(store, _REQUESTS)
        insertion = state.plan_norm_rope_insert(table, values, numbers, store, numbers)
        yield Example(f"{kind}, {_name(layout)}", insertion)
        return
    online: tuple[StateFormat, ...] = ("online",) if layer.attn is AttentionType.HCA else ()
    for form in ("ring", *online):
        shaped = build_schema(config, layer, block_tokens=_BLOCK_TOKENS, state=form)
        shape = shaped.indexer_state_shape if indexer else shaped.state_shape
        states = _empty(torch.float32, _REQUESTS, *shape)
        kind = f"{layer.attn.value}-{layer.ratio}{owner} {form}"
        for variant, how in VARIANTS["flush"].items():  # those of chunks, too
            for launch in _compressor_launches(table, states, _store(layout), variant):
                pages = launch.module.source == "flush.cuh"
                subject = f"{kind}, {_name(layout)}, {variant}" if pages else kind
                yield Example(subject, launch, how.architectures)
        if config.name == _BOTH_ROPES:
            for launch in _compressor_launches(exact, states, _store(layout), portable("flush")):
                yield Example(f"{kind} float64, {_name(layout)}", launch)


def _compressor_launches(
    compressor: Compressor, states: Tensor, store: PageStore, variant: str
) -> Iterator[Launch]:
    tokens, split = (
        _empty(torch.float32, _REQUESTS, compressor.channels),
        state.split_of(compressor),
    )
    numbers, chunk = _numbers(_REQUESTS), _numbers(3)
    scratch = _empty(torch.float32, _REQUESTS, compressor.dim)
    yield state.plan_state_append(compressor, states, tokens, tokens, numbers, numbers)
    yield from state.plan_flush(
        compressor, states, numbers, numbers, store, numbers,
        variant=variant, split=split, scratch=scratch,
    )  # fmt: skip
    yield from state.plan_compress_chunk(
        compressor, states, tokens, tokens, chunk, store, numbers,
        variant=variant, split=split, scratch=scratch,
    )  # fmt: skip


def _step_examples(config: DSV4Config, layer: LayerSpec) -> Iterator[Example]:
    """All that a decode step writes; with drafts, and for HCA with both of its states, too."""
    shapes: list[tuple[StateFormat, int]] = [("ring", 0), ("ring", _DRAFTS)]
    if layer.attn is AttentionType.HCA:
        shapes.append(("online", 0))
    for form, drafts in shapes:
        schema = build_schema(
            config, layer, block_tokens=_BLOCK_TOKENS, state=form, draft_tokens=drafts
        )
        if schema.main and (launch := example_step_write(config, schema)):
            kind = f"{layer.attn.value}-{layer.ratio} {form}{' with drafts' if drafts else ''}"
            yield Example(f"{kind}, {_name(schema.main)}", launch)


def _table_examples(config: DSV4Config) -> Iterator[Example]:
    schemas = [build_schema(config, layer) for layer in build_schedule(config)]
    (group,) = table_groups(schemas, "model")
    device = torch.device("meta")
    table = prepare.DeviceTable.allocate(group, _BLOCKS, _REQUESTS, _CONTEXT_TOKENS, device)
    numbers = _numbers(_REQUESTS)
    sizes = group.ratio, group.entries_per_block
    for launch in (
        *prepare.plan_prepare([table, table], numbers, numbers),  # several tables: judged first
        *prepare.plan_release([table], numbers),
        plan_completed(table.cells, *sizes, numbers, numbers, numbers[None]),
    ):
        yield Example("block table", launch)


def _bandwidth_examples() -> Iterator[Example]:
    memory, sums = _empty(torch.uint8, _BYTES), _empty(torch.int32, bandwidth.THREADS)
    for launch in (
        bandwidth.plan_copy_peak(memory, memory),
        bandwidth.plan_read_peak(memory, sums),
        bandwidth.plan_write_peak(memory),
        bandwidth.plan_nothing(memory),
    ):
        yield Example("16-byte chunks", launch)


def _name(layout: PageLayout) -> str:
    flat = "flat-" if layout.format in FLAT_FORMATS.values() else ""  # V3.2's have V4's names
    return f"{flat}{layout.format.name} × {layout.entries}"


def _store(layout: PageLayout) -> PageStore:
    return PageStore.allocate(layout, _PAGES, torch.device("meta"))


def _values(store: PageStore, *shape: int) -> Tensor:
    return _empty(torch.bfloat16, *shape, store.layout.format.dims)


def _numbers(count: int) -> Tensor:
    return _empty(torch.int64, count)


def _empty(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
