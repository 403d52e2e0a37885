"""Page rounding equals adding up every page and every entry of every layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve.loop import unused_bytes
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
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
    assert unused_bytes(manager, np.array(slots)) == brute_force(manager, slots)
