"""Small caches whose pages and states the checks work on."""

from typing import Any

from dsv4kv.model.plan import CachePlan, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats


def cache(
    formats: tuple[str, str, str] | None = None, model_name: str = "v4-flash", **options: Any
) -> CachePlan:
    """One layer of each attention of V4-Flash; formats are those of main, window and indexer."""
    model = load_model(model_name)
    chosen = choose_formats(model, *formats) if formats else None
    return plan_cache(
        model, max_context_tokens=4096, num_slots=4, layers=[0, 2, 3], formats=chosen, **options
    )


CACHES = {
    "as shipped": cache(),
    "long blocks": cache(block_tokens=256),
    "drafts": cache(draft_tokens=3),
    "online states": cache(state="online"),
    "V4.1 formats": cache(("fp4", "fp8_group32", "fp8")),
    "V4.1": cache(("fp4_interleaved", "fp8_group32_interleaved", "mxfp4"), "v4.1-flash"),
    "V3.2": cache(None, "v3.2"),
    "unquantised": cache(("bf16", "bf16", "bf16"), hadamard=False),
}
