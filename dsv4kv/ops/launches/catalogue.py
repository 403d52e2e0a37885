"""Every kernel that the shipped models need, as example launches on tensors without data.

The launch plans themselves make them, so what is compiled and looked at is what a run launches.
What kernels promise about their machine code is by name here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config, Precision
from dsv4kv.model.formats import FLAT_FORMATS, PageLayout, entry_format
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, LayerSpec, build_schedule
from dsv4kv.model.schema import LayerCacheSchema, StateFormat, build_schema, table_groups
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.launches import attend, copies, pages, prepare, select, state
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.spec import OPERATIONS, VARIANTS, portable
from dsv4kv.ops.storage import Entries, PageStore, PartWrite

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120")
"""A100; H100 and H200; B200; B300; RTX 50."""

_MODELS = ("v4-flash", "v4-pro", "v4.1-flash", "v3.2")
_OTHER_PAGES = {"v4.1-flash": ("fp4_interleaved", "fp8_group32_interleaved")}
"""Other formats that kernels are compiled for, of main entries and of windows, by model."""
_ALL_FORMATS = "v4-flash"  # keys shown in FP8, too, and compressors with angles in float64
_BLOCK_TOKENS, _LARGE_BLOCK_TOKENS, _DRAFTS = 128, 256, 3

# Sizes of the tensors, which are arguments and compiled into nothing but prepare's kernels.
_PAGES, _SIZE, _CHOICES, _WIDTH = 2, 4, 512, 8
_SIZES = dict.fromkeys("BTESNH", _SIZE) | {"K": _CHOICES, "M": _CHOICES, "W": _WIDTH}
_BLOCKS, _CONTEXT_TOKENS = 4096, 131_072  # of prepare's


@dataclass(frozen=True)
class Example:
    """A launch of one kernel and what it works on: ``fp8_ds_mla × 32``, ``csa-4 ring``."""

    subject: str  # formats, sizes and, where the operation has variants, which of them
    launch: Launch  # what is launched
    architectures: tuple[str, ...] | None = None  # that it is for; None for all

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what the kernel takes."""
        return self.architectures is None or architecture in self.architectures


@dataclass(frozen=True)
class Promise:
    """How a kernel accesses global memory; widths are bits of one thread's access."""

    # at least one load is this wide: the values. Indices and tables may be narrower
    loads: int = 0
    stores: int = 0  # no store is narrower than this
    under_way: int = 0  # wide loads issued before the first of them is waited for
    copies: bool = False  # there are bulk copies into shared memory
    products: bool = False  # tensor cores multiply


PROMISES = {
    "attend *": Promise(products=True),
    "merge_parts *": Promise(loads=128),
    "copy_peak *": Promise(loads=128, stores=128, under_way=8),
    "read_peak *": Promise(loads=128),
    "write_peak *": Promise(stores=128),
    "gather_*": Promise(stores=128),
    "gather_[aet]* fp8_ds_mla*": Promise(loads=128, under_way=8),  # its bf16 tail; e4m3 takes 64
    "gather_* fp8_ds_mla*, ahead": Promise(under_way=16),
    "gather_window fp8_*": Promise(loads=64),
    "*_insert *": Promise(loads=128),  # of norm_rope_insert's weights; its values take 64 bits
    "[ew]*_insert fp8_ds_mla*": Promise(stores=64),  # the row of scales is 8 bytes
    "page_copy *": Promise(loads=128, stores=128),
    "*_objects *": Promise(loads=128, stores=128),
    "indexer_query *": Promise(loads=128, stores=32),
    "index_scores *": Promise(products=True),
    "state_*": Promise(loads=128, stores=128),
    "flush*": Promise(loads=128),
    "step_write *": Promise(loads=128),
    "chunk_*": Promise(loads=128),
    "*flush csa-4 *, scratch": Promise(under_way=16),  # 8 rows of kv and of score
    "*flush hca-128 *, scratch": Promise(under_way=8),  # 4 rows at a time
    "*flush hca-128 *, cluster": Promise(copies=True),
}
"""By patterns of kernel and subject; all that fit hold. Local memory is promised by none."""


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
                yield from _layer_examples(name, schema)
            yield from _state_examples(config, schema)
            if layer.attn not in shown:
                yield from _read_examples(config, schema)
            shown |= {layer.attn} if layer.owns_kv else set()
    flash = load_model("v4-flash")
    for layer in _distinct_layers(flash):
        if main := build_schema(flash, layer, block_tokens=_LARGE_BLOCK_TOKENS).main:
            yield from _page_examples("entry_insert", main, every=False)
    yield from _other_examples(flash)


def _distinct_layers(config: DSV4Config) -> list[LayerSpec]:
    """One layer for each schema."""
    kinds = {(layer.attn, layer.ratio, layer.owns_kv): layer for layer in build_schedule(config)}
    return list(kinds.values())


def arguments(operation: str, sizes: Mapping[str, int], **given: Any) -> dict[str, Any]:
    """Arguments of an operation by the table: tensors of these sizes without data, else given."""
    return {
        each.name: given[each.name]
        if each.name in given
        else empty(getattr(torch, each.dtype), *(sizes[name] for name in each.shape))
        for each in OPERATIONS[operation].arguments
    }


def empty(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def empty_pages(layout: PageLayout, count: int = _PAGES) -> PageStore:
    """A few pages without data."""
    return PageStore.allocate(layout, count, torch.device("meta"))


def _title(layout: PageLayout) -> str:
    flat = "flat-" if layout.format in FLAT_FORMATS.values() else ""  # V3.2's have V4's names
    return f"{flat}{layout.format.name} × {layout.entries}"


def _page_example(operation: str, layout: PageLayout, variant: str | None) -> Example:
    sizes = _SIZES | {"D": layout.format.dims}
    subject, how = _title(layout), {"variant": variant} if variant else {}
    where = OPERATIONS[operation].names[0]
    given: dict[str, Any] = {where: empty_pages(layout)}
    if operation == "gather_window":
        sizes["M"] = layout.entries
    if operation == "indexer_insert":
        given["hadamard"] = True
    plan: Callable[..., Launch] = getattr(pages, f"plan_{operation}")
    launch = plan(**arguments(operation, sizes, **given), **how)
    return Example(f"{subject}, {variant}" if variant else subject, launch)


def _page_examples(insert: str, layout: PageLayout, *, every: bool) -> Iterator[Example]:
    """Inserts and reads of pages; ``every``: in all variants, and copies."""
    variants = list(VARIANTS.get(insert, {"": None}))
    # Of long entries both ways are one, which is called single.
    long = layout.format in FLAT_FORMATS.values()
    for variant in variants if every else variants[long:][:1]:
        yield _page_example(insert, layout, variant)
    window = insert == "window_insert"
    gathers = list(VARIANTS["gather_topk"])  # and of the others
    for variant in gathers if every else gathers[:1]:
        for gather in ("gather_window",) if window else ("gather_topk", "gather_all"):
            yield _page_example(gather, layout, variant)
        if not window:
            out = empty(torch.bfloat16, _CHOICES, layout.format.dims)
            entries = empty(torch.int32, _CHOICES)
            launch = pages.plan_gather_entries(empty_pages(layout), entries, out, variant=variant)
            yield Example(f"{_title(layout)}, {variant}", launch)
    if every and not window:
        yield _page_example("page_copy", layout, None)


def _layer_examples(model: str, schema: LayerCacheSchema) -> Iterator[Example]:
    places = (("window", schema.window), ("entry", schema.main), ("indexer", schema.indexer))
    for place, layout in places:
        if layout:
            yield from _page_examples(f"{place}_insert", layout, every=model == _ALL_FORMATS)
    if schema.main and schema.window and model in _OTHER_PAGES:
        main, window = _OTHER_PAGES[model]
        other = PageLayout(entry_format("main", main), schema.main.entries)
        yield from _page_examples("entry_insert", other, every=False)
        other = PageLayout(entry_format("window", window), schema.window.entries)
        yield from _page_examples("window_insert", other, every=False)


def _compressor(
    config: DSV4Config, layer: LayerSpec, rope: Precision, *, indexer: bool
) -> Compressor:
    turns = make_rope(config, layer.ratio, layer.ratio, rope)
    return random_compressor(
        config, layer, torch.Generator(), rope=turns, indexer=indexer, hadamard=indexer
    )


def _state_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    """What a decode step writes, with drafts, and for HCA with both of its states, too."""
    layer = schema.layer
    shapes: list[tuple[StateFormat, int]] = [("ring", 0), ("ring", _DRAFTS)]
    if layer.attn is AttentionType.HCA:
        shapes.append(("online", 0))
    for form, drafts in shapes:
        shaped = build_schema(
            config, layer, block_tokens=_BLOCK_TOKENS, state=form, draft_tokens=drafts
        )
        if shaped.main and shaped.window and shaped.state_shape:
            kind = f"{layer.attn.value}-{layer.ratio} {form}{' with drafts' if drafts else ''}"
            launch = _step_write(config, shaped, shaped.window)
            yield Example(f"{kind}, {_title(shaped.main)}", launch)
    if layer.attn is AttentionType.DSA:  # is given its entries as they are
        return
    for layout, indexer in ((schema.main, False), (schema.indexer, True)):
        if layout:
            yield from _compressor_examples(config, schema, layout, indexer=indexer)


def _step_write(config: DSV4Config, schema: LayerCacheSchema, window: PageLayout) -> Launch:
    """What a decode step of one request writes to a layer."""
    parts = []
    for layout, shape, indexer in (
        (schema.main, schema.state_shape, False),
        (schema.indexer, schema.indexer_state_shape, True),
    ):
        if layout and shape:
            compressor = _compressor(config, schema.layer, "float32", indexer=indexer)
            token = empty(torch.float32, 1, compressor.channels)
            held = empty(torch.float32, 1, *shape), token, token, empty_pages(layout, 1)
            parts.append(PartWrite(compressor, *held, empty(torch.int64, 1)))
    ring, sizes = empty_pages(window, 1), {"T": 1, "D": config.head_dim}
    given = arguments("step_write", sizes, ring=ring, parts=tuple(parts))
    scratch, arrivals = empty(torch.float32, 1, config.head_dim), empty(torch.int32, 1)
    return state.plan_step_write(**given, scratch=scratch, arrivals=arrivals)


def _compressor_examples(
    config: DSV4Config, schema: LayerCacheSchema, layout: PageLayout, *, indexer: bool
) -> Iterator[Example]:
    """Append, flush and chunk in every variant; for HCA with both of its states."""
    layer, owner = schema.layer, " indexer" if indexer else ""
    table, exact = (
        _compressor(config, layer, rope, indexer=indexer) for rope in get_args(Precision)
    )
    kind, title = f"{layer.attn.value}-{layer.ratio}{owner}", _title(layout)
    if not (schema.indexer_state_shape if indexer else schema.state_shape):
        sizes = _SIZES | {"D": layout.format.dims}
        given = arguments("norm_rope_insert", sizes, compressor=table, store=empty_pages(layout))
        yield Example(f"{kind}, {title}", state.plan_norm_rope_insert(**given))
        return
    online: tuple[StateFormat, ...] = ("online",) if layer.attn is AttentionType.HCA else ()
    for form in ("ring", *online):
        shaped = build_schema(config, layer, block_tokens=_BLOCK_TOKENS, state=form)
        shape = shaped.indexer_state_shape if indexer else shaped.state_shape
        for variant, how in VARIANTS["flush"].items():  # those of chunks, too
            for launch in _compressor_launches(table, shape, layout, variant):
                on_pages = launch.module.source == "flush.cuh"
                subject = f"{kind} {form}, {title}, {variant}" if on_pages else f"{kind} {form}"
                yield Example(subject, launch, how.architectures)
        if config.name == _ALL_FORMATS:
            for launch in _compressor_launches(exact, shape, layout, portable("flush")):
                yield Example(f"{kind} {form} float64, {title}", launch)


def _compressor_launches(
    compressor: Compressor, shape: tuple[int, ...], layout: PageLayout, variant: str
) -> Iterator[Launch]:
    sizes = _SIZES | {"C": compressor.channels}
    given = {
        "compressor": compressor,
        "state": empty(torch.float32, _SIZE, *shape),
        "store": empty_pages(layout),
        "slot": 0,
        "start": 0,
    }
    yield state.plan_state_append(**arguments("state_append", sizes, **given))
    yield from state.plan_flush(**arguments("flush", sizes, **given), variant=variant)
    chunk = arguments("compress_chunk", sizes, **given)
    del chunk["slot"], chunk["start"]
    numbers = empty(torch.int64, 3)
    yield from state.plan_compress_chunk(**chunk, chunk=numbers, variant=variant)


def _read_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    """What a decode step reads of a layer; FP8 keys, too, which is what Hopper has of V4."""
    if schema.indexer and schema.main:
        yield from _score_examples(config, schema.indexer)
        yield from _selection_examples(config, schema.main)
    if config.name == _ALL_FORMATS and schema.indexer:
        keys = PageLayout(entry_format("indexer", "fp8"), schema.indexer.entries)
        yield from _score_examples(config, keys)
    if schema.window and (schema.main or config.name == _ALL_FORMATS):
        yield from _attend_examples(config, schema, schema.window)


def _score_examples(config: DSV4Config, layout: PageLayout) -> Iterator[Example]:
    heads = config.index_heads
    sizes = _SIZES | {"H": heads, "D": config.index_dim, "R": config.rope_dim}
    query = arguments("indexer_query", sizes, hadamard=True)
    yield Example("with Hadamard", select.plan_indexer_query(**query))
    given = arguments("index_scores", sizes, store=empty_pages(layout), blocks=None)
    launch = select.plan_index_scores(**given)
    yield Example(f"{_title(layout)}, {heads} heads", launch)


def _selection_examples(config: DSV4Config, main: PageLayout) -> Iterator[Example]:
    """Rows of several runs; of V4.1 blocks of entries, and entries of some blocks, too."""
    columns = 2 * select.RUN
    size = config.candidates.block_entries if config.candidates else 0
    for blocks in (0, size) if size else (0,):
        sizes = _SIZES | {"M": columns, "N": columns // max(blocks, 1)}
        given: dict[str, Any] = {"page_entries": main.entries} | (
            {} if blocks else {"blocks": None}
        )
        of = f"of blocks of {blocks}, " if blocks else ""
        for launch in select.plan_select_topk(**arguments("select_topk", sizes, **given)):
            yield Example(f"{of}pages of {main.entries}", launch)
    if size:
        sizes = _SIZES | {"M": columns * size, "N": _CHOICES}
        chosen = arguments("select_blocks", sizes, block_entries=size)
        for launch in select.plan_select_blocks(**chosen):
            yield Example(f"of {size}", launch)


_SHAPES = (
    (
        "wide",
        attend.WIDE,
        ("sm_90a", "sm_100a", "sm_103a"),
    ),  # with 227 KiB of shared memory a block
    ("groups", attend.GROUPS, ("sm_90a",)),
    ("narrow", attend.NARROW, None),
)


def _attend_examples(
    config: DSV4Config, schema: LayerCacheSchema, window: PageLayout
) -> Iterator[Example]:
    """Attention to the window, and to all entries of a layer or the chosen ones."""
    entries, seen = None, "window"
    if schema.main:
        chosen = empty(torch.int32, _SIZE, _CHOICES) if schema.indexer else None
        seen = "chosen" if schema.indexer else "all"
        table, lengths = empty(torch.int32, _SIZE, _WIDTH), empty(torch.int64, _SIZE)
        entries = Entries(empty_pages(schema.main), table, lengths, chosen)
    sizes = _SIZES | {"H": config.num_heads, "D": window.format.dims}
    other = {"window": window.entries, "entries": entries, "scale": 1.0}
    given = arguments("attend", sizes, ring=empty_pages(window), **other)
    title = f"{_title(schema.main or window)}, {seen}"
    for name, shape, architectures in _SHAPES if seen == "chosen" else _SHAPES[:2]:
        reading, merging = attend.plan_attend(**given, shape=shape, blocks=2)
        yield Example(f"{title}, {name}", reading, architectures)
        yield Example("512 channels", merging)


def _other_examples(config: DSV4Config) -> Iterator[Example]:
    """Block tables taken, given back and completed; peaks of memory; objects of tiers."""
    schemas = [build_schema(config, layer) for layer in build_schedule(config)]
    (group,) = table_groups(schemas, "model")
    table = prepare.DeviceTable.allocate(
        group, _BLOCKS, _SIZE, _CONTEXT_TOKENS, torch.device("meta")
    )
    slots, sizes = empty(torch.int64, _SIZE), (group.ratio, group.entries_per_block)
    for launch in (
        *prepare.plan_prepare([table, table], slots, slots),
        *prepare.plan_release([table], slots),
        prepare.plan_completed(table.cells, *sizes, slots, slots, slots[None]),
    ):
        yield Example("block table", launch)
    memory, sums = empty(torch.uint8, 4096), empty(torch.int32, copies.THREADS)
    numbers = empty(torch.int64, 2, 2)
    for launch in (
        copies.plan_copy_peak(memory, memory),
        copies.plan_read_peak(memory, sums),
        copies.plan_write_peak(memory),
        copies.plan_nothing(memory),
        copies.plan_objects("take", numbers, numbers, memory, 1024, 2048),
        copies.plan_objects("put", numbers, numbers, memory, 1024, 2048),
    ):
        yield Example("16-byte chunks", launch)
