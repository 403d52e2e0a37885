"""Which calls a cache makes: every operation with every kind of pages it is used on."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.rope import Precision
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops.check import calls
from dsv4kv.ops.check.maker import Make
from dsv4kv.ops.compressor import random_compressor
from dsv4kv.ops.rope import make_rope
from dsv4kv.ops.tolerance import Leeway


@dataclass(frozen=True)
class Scene:
    """One call of an operation.

    Attributes:
        operation: Name in the contract.
        subject: What it works on, in words.
        format_name: Of its pages; None without pages.
        make: Makes the arguments.
        leeway: How far written entries may be from the reference's.
    """

    operation: str
    subject: str
    format_name: str | None
    make: Make
    leeway: Leeway = Leeway.NONE


def scenes_of(plan: CachePlan, seed: int) -> list[Scene]:
    """Scenes of a cache; layers of one kind share theirs."""
    random = torch.Generator().manual_seed(seed)
    scenes: dict[tuple[str, str], Scene] = {}
    for schema in plan.schemas:
        for scene in (*_page_scenes(plan, schema), *_state_scenes(plan, schema, random)):
            scenes.setdefault((scene.operation, scene.subject), scene)
    return list(scenes.values())


def _page_scenes(plan: CachePlan, schema: LayerCacheSchema) -> Iterator[Scene]:
    if ring := schema.window:
        window = plan.config.window_tokens
        yield _on("window_insert", "window", ring, calls.window_insert(ring))
        yield _on("gather_window", "window", ring, calls.gather_window(ring, window))
    if main := schema.main:
        yield _on("entry_insert", "main", main, calls.entry_insert(main))
        if schema.layer.attn is AttentionType.CSA:
            yield _on("gather_topk", "main", main, calls.gather_topk(main))
    if keys := schema.indexer:
        insert = calls.indexer_insert(keys, plan.hadamard)
        leeway = Leeway.SUM if plan.hadamard else Leeway.NONE  # a rotation is a sum
        yield _on("indexer_insert", "indexer", keys, insert, leeway)
    for place, pages in (("main", schema.main), ("indexer", schema.indexer)):
        if pages:
            yield _on("gather_all", place, pages, calls.gather_all(pages))
            yield _on("page_copy", place, pages, calls.page_copy(pages))


@functools.lru_cache(maxsize=2)
def _whole_rope(config: DSV4Config, ratio: int, precision: Precision) -> Tensor:
    """Of all positions that the model has, however long the cache's requests are."""
    return make_rope(config, ratio, config.max_context_tokens, precision)


def _on(
    operation: str, place: str, pages: PageLayout, make: Make, leeway: Leeway = Leeway.NONE
) -> Scene:
    subject = f"{place} pages of {pages.entries} {pages.format.name} entries"
    return Scene(operation, subject, pages.format.name, make, leeway)


def _state_scenes(
    plan: CachePlan, schema: LayerCacheSchema, random: torch.Generator
) -> Iterator[Scene]:
    parts: list[calls.Part] = []
    for place, pages, shape in (
        ("main", schema.main, schema.state_shape),
        ("indexer", schema.indexer, schema.indexer_state_shape),
    ):
        if not pages or not shape:
            continue
        indexer = place == "indexer"
        compressor = random_compressor(
            plan.config,
            schema.layer,
            random,
            rope=_whole_rope(plan.config, schema.layer.ratio, plan.rope),
            indexer=indexer,
            hadamard=indexer and plan.hadamard,
        )
        states = f"{place} states of {schema.layer.attn} layers"
        leeway = Leeway.ROTATED_SUM if compressor.hadamard else Leeway.SUM
        append = calls.state_append(compressor, shape)
        yield Scene("state_append", states, None, append)
        for operation, make in (
            ("flush", calls.flush(compressor, shape, pages)),
            ("compress_chunk", calls.compress_chunk(compressor, shape, pages)),
        ):
            yield Scene(operation, states, pages.format.name, make, leeway)
        parts.append((compressor, shape, pages))
    if parts and schema.window:
        step, subject = calls.step_write(schema.window, parts), f"{schema.layer.attn} layers"
        yield Scene("step_write", subject, schema.window.format.name, step, Leeway.SUM)
