"""Rows of a request by logical position: into other pages, rings and blocks, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch

from dsv4kv.bench.objects import coalesce, describe, geometry_of, rows_needed
from dsv4kv.bench.transfer import Memory, make_manifest, receive
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.model.plan import Family, Kept, plan_cache
from dsv4kv.model.presets import load_model

LENGTHS = [1, 3, 4, 127, 128, 129, 255, 256, 257, 0]
LAYERS = {"v4-flash": (0, 1, 2, 3, 4, 43), "v4.1-flash": None, "v3.2": (0, 1)}


def cache(model: str = "v4-flash", **changes: Any) -> KVCacheManager:
    """A cache whose every byte is drawn."""
    config = load_model(model)
    sizes: dict[str, Any] = {
        "max_context_tokens": 600,
        "num_slots": 3,
        "block_tokens": 256,
        "layers": LAYERS[model],
        "draft_layers": model == "v4-flash",
    }
    manager = KVCacheManager(plan_cache(config, **(sizes | changes)))
    generator = torch.Generator().manual_seed(len(changes))
    for region in Memory(manager).regions:
        torch.frombuffer(region, dtype=torch.uint8).random_(0, 256, generator=generator)
    return manager


def running(manager: KVCacheManager, tokens: int, *, seed: int = 0) -> int:
    """A request of so many tokens whose blocks are in no order, in any slot."""
    random = np.random.default_rng(seed)
    for slot, held in enumerate(manager.tokens.tolist()):
        if held:
            manager.release_request(slot, manager.generation(slot))
    slots = [manager.admit_request() for _ in range(int(random.integers(1, 3)))]
    for length in random.integers(1, tokens + 2, 2 * len(slots)).tolist():
        for slot in slots:
            before = manager.tokens[slot]
            prepare_forward(manager, [slot], [before], [min(length, tokens)])
    prepare_forward(manager, [slots[-1]], [manager.tokens[slots[-1]]], [tokens])
    return slots[-1]


def moved(source: KVCacheManager, slot: int, target: KVCacheManager, tokens: int) -> int:
    theirs = Memory(source)
    manifest = make_manifest(theirs, slot, tokens)
    return receive(Memory(target), manifest, theirs.regions)[0]


def rows_of(manager: KVCacheManager, slot: int, tokens: int) -> dict[str, list[bytes]]:
    """Every row that a request needs, in every layer, entry by entry in the plainest way."""
    memory, found = Memory(manager), dict[str, list[bytes]]()
    for name, family in memory.families.items():
        window = manager.plan.config.window_tokens
        found[name] = [
            row_of(memory, family, layer, slot, row)
            for layer in range(len(family.layers))
            for row in rows_needed(family, tokens, window)
        ]
    return found


def row_of(memory: Memory, family: Family, layer: int, slot: int, row: int) -> bytes:
    pool = memory.regions[memory.numbers[family.name] + layer]
    if family.kept is Kept.PAGES:
        assert family.layout is not None
        table = memory.manager.tables[0]
        page = int(table.blocks[0, slot, row // family.layout.entries])
        row %= family.layout.entries
    else:
        page = slot
        row %= family.tokens
    start = page * family.piece_bytes
    if family.layout is None:
        if len(family.state_shape) == 2:
            return bytes(pool[start : start + family.piece_bytes])
        size, half = family.state_shape[2] * 4, family.piece_bytes // 2
        return b"".join(bytes(pool[start + part + row * size :][:size]) for part in (0, half))
    form, layout = family.layout.format, family.layout
    data = bytes(pool[start + layout.data_offset(row) :][: form.data_row_bytes])
    scales = bytes(pool[start + layout.scale_offset(row) :][: form.scale_row_bytes])
    return data + scales


CACHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("v4-flash", {}, {}),
    ("v4-flash", {"block_tokens": 128}, {}),
    ("v4-flash", {}, {"block_tokens": 128}),
    ("v4-flash", {"block_tokens": 256}, {"block_tokens": 1024, "max_context_tokens": 1100}),
    ("v4-flash", {}, {"draft_tokens": 4}),
    ("v4-flash", {"draft_tokens": 3, "block_tokens": 128}, {"draft_tokens": 8}),
    ("v4-flash", {"state": "online"}, {"state": "online", "block_tokens": 128}),
    ("v4.1-flash", {"block_tokens": 128}, {"draft_tokens": 2}),
    ("v3.2", {"block_tokens": 64}, {}),
]


@pytest.mark.parametrize(("model", "left", "right"), CACHES)
def test_rows_are_the_same_in_another_cache(
    model: str, left: dict[str, Any], right: dict[str, Any]
) -> None:
    """Other blocks, other page sizes, other rings: what a request reads is bit for bit equal."""
    source, target = cache(model, **left), cache(model, **right, num_slots=5)
    for tokens in LENGTHS:
        slot = running(source, tokens, seed=tokens)
        running(target, 64, seed=tokens)
        there = moved(source, slot, target, tokens)
        assert rows_of(target, there, tokens) == rows_of(source, slot, tokens), tokens
        target.release_request(there, target.generation(there))


def test_neighbouring_pages_are_one_descriptor_where_they_are_neighbours_on_both_sides() -> None:
    page = PageLayout(FORMATS["main"]["fp8_ds_mla"], 64)
    family = Family("csa", "main", Kept.PAGES, (0,), 4, 256, page.page_bytes, layout=page)
    geometry = geometry_of(family)
    rows = range(6 * 64)
    for source, target, count in (
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 1),
        ([3, 4, 5, 0, 1, 2], [0, 1, 2, 3, 4, 5], 2),
        ([5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0], 1),
        ([5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], 6),
    ):
        each = describe(geometry, np.array(source), geometry, np.array(target), rows)
        assert len(each) == 6
        assert len(coalesce(each)) == count
        assert coalesce(each)[:, 2].sum() == 6 * 37_440
