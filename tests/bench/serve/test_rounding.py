"""Page rounding equals adding up every page and every entry of every layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve.loop import PageRounding
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from tests.examples import examples

CONTEXT_TOKENS = 2000


def fill(tokens: Sequence[int], preset: str = "v4-flash", **options: Any) -> KVCacheManager:
    """A cache whose slots hold requests of these lengths."""
    plan = plan_cache(
        load_model(preset), max_context_tokens=CONTEXT_TOKENS, num_slots=len(tokens), **options
    )
    manager = KVCacheManager(plan, data=False)
    slots = [manager.admit_request() for _ in tokens]
    prepare_forward(manager, slots, [0] * len(tokens), tokens)
    return manager


def brute_force(manager: KVCacheManager, slots: Sequence[int]) -> int:
    """Bytes of held pages less bytes of entries: layer by layer, slot by slot."""
    unused = 0
    for schema in manager.plan.schemas:
        for table in manager.tables:
            if schema.layer.layer_idx not in table.group.layers:
                continue
            row = table.blocks[table.group.lane_of(schema.layer.layer_idx)]
            for page in filter(None, (schema.main, schema.indexer)):
                for slot in slots:
                    pages = sum(block >= 0 for block in row[slot])
                    entries = int(manager.tokens[slot]) // schema.layer.ratio
                    unused += pages * page.page_bytes - entries * page.format.entry_bytes
    return unused


@examples(150)
@given(
    tokens=st.lists(st.integers(0, CONTEXT_TOKENS), min_size=1, max_size=4),
    preset=st.sampled_from(("v4-flash", "v4-pro", "v4.1-flash", "v3.2")),
    sharing=st.sampled_from(("model", "type", "layer")),
    block_tokens=st.sampled_from((128, 256, 640)),
)
def test_rounding_is_what_held_pages_hold_beyond_entries(
    tokens: list[int], preset: str, sharing: str, block_tokens: int
) -> None:
    manager = fill(tokens, preset, sharing=sharing, block_tokens=block_tokens)
    slots = list(range(len(tokens)))
    assert PageRounding(manager).unused_bytes(np.array(slots)) == brute_force(manager, slots)


@pytest.mark.parametrize("main", ["fp8_ds_mla", "bf16", "fp8", "fp4"])
@pytest.mark.parametrize("indexer", ["mxfp4", "fp8", "bf16"])
def test_rounding_follows_the_entry_formats(main: str, indexer: str) -> None:
    formats = choose_formats(load_model("v4-flash"), main=main, indexer=indexer)
    manager = fill([1, 127, 128, 300], formats=formats)
    assert PageRounding(manager).unused_bytes(np.arange(4)) == brute_force(manager, range(4))


def test_a_case_worked_out_by_hand() -> None:
    manager = fill([132], layers=[0, 2, 3])
    # Two blocks hold 33 of 64 CSA entries (584 B in pages of 19,008 B; keys of 68 B in 2,176 B)
    # and 1 of 2 HCA entries (584 B in pages of 1,152 B).
    csa = 2 * 19_008 - 33 * 584 + 2 * 2_176 - 33 * 68
    assert PageRounding(manager).unused_bytes(np.array([0])) == csa + 2 * 1_152 - 584


def test_an_empty_cache_wastes_nothing() -> None:
    assert PageRounding(fill([0, 0])).unused_bytes(np.arange(2)) == 0


def test_a_model_without_compressed_layers_wastes_nothing() -> None:
    assert PageRounding(fill([500], layers=[0, 1])).unused_bytes(np.array([0])) == 0
