"""Every kernel that the shipped models need, as example launches on tensors without data."""

from collections.abc import Iterable, Iterator

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout, entry_format
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, LayerSpec, build_schedule
from dsv4kv.model.schema import LayerCacheSchema, build_schema
from dsv4kv.ops.kernels import (
    attend,
    bandwidth,
    gather,
    insert,
    objects,
    prepare,
    scores,
    state,
    topk,
)
from dsv4kv.ops.kernels.example import Example

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
"""A100; H100 and H200; B200; RTX 50."""

_MODELS = ("v4-flash", "v4-pro", "v4.1-flash", "v3.2")
_OTHER_PAGES = {"v4.1-flash": ("fp4_interleaved", "fp8_group32_interleaved")}
"""Other formats that kernels are compiled for, of main entries and of windows, by model."""
_ALL_FORMATS = "v4-flash"  # the one whose keys are shown in FP8, too

PROMISES = {
    pattern: promise
    for module in (attend, bandwidth, gather, insert, objects, scores, state)
    for pattern, promise in module.PROMISES.items()
}
"""By patterns of kernel and subject; all that fit hold. Local memory is promised by none."""

_BLOCK_TOKENS, _LARGE_BLOCK_TOKENS = 128, 256


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
    yield from prepare.examples(flash)
    yield from bandwidth.examples()
    yield from objects.examples()


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
        yield from insert.key_examples(schema.indexer)
        yield from _page_examples(schema.indexer)


def _other_pages(
    main: PageLayout, window: PageLayout, main_format: str, window_format: str
) -> Iterator[Example]:
    yield from _main_examples(PageLayout(entry_format("main", main_format), main.entries))
    yield from _window_examples(PageLayout(entry_format("window", window_format), window.entries))


def _state_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    yield from state.step_examples(config, schema.layer, _BLOCK_TOKENS)
    if schema.layer.attn is AttentionType.DSA:  # is given its entries as they are
        return
    if schema.main:
        yield from state.compressor_examples(
            config, schema, schema.main, _BLOCK_TOKENS, indexer=False
        )
    if schema.indexer:
        yield from state.compressor_examples(
            config, schema, schema.indexer, _BLOCK_TOKENS, indexer=True
        )


def _read_examples(config: DSV4Config, schema: LayerCacheSchema) -> Iterator[Example]:
    """What a decode step reads of a layer; FP8 keys, too, which is what Hopper has of V4."""
    if schema.indexer and schema.main:
        yield from scores.examples(config, schema.indexer)
        yield from topk.examples(config, schema.main)
    if config.name == _ALL_FORMATS and schema.indexer:
        keys = PageLayout(entry_format("indexer", "fp8"), schema.indexer.entries)
        yield from scores.examples(config, keys)
    if schema.window and (schema.main or config.name == _ALL_FORMATS):
        yield from attend.examples(config, schema, schema.window)


def _window_examples(layout: PageLayout) -> Iterator[Example]:
    yield from insert.window_examples(layout)
    yield from gather.window_examples(layout)
    yield from insert.copy_examples(layout)


def _main_examples(layout: PageLayout) -> Iterator[Example]:
    yield from insert.entry_examples(layout)
    yield from _page_examples(layout)


def _page_examples(layout: PageLayout) -> Iterator[Example]:
    yield from gather.page_examples(layout)
    yield from insert.copy_examples(layout)
