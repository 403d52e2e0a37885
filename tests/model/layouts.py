"""Schemas of whole models, for tests."""

from collections.abc import Collection

from dsv4kv.model.config import build_schedule
from dsv4kv.model.plan import LayerCacheSchema, build_schema, choose_formats
from dsv4kv.model.presets import load_model


def schemas_of(
    model: str,
    main: str | None = None,
    indexer: str | None = None,
    *,
    window: str | None = None,
    layers: Collection[int] | None = None,
    block_tokens: int = 128,
) -> list[LayerCacheSchema]:
    """Schemas of a preset; None takes the model's own formats."""
    config = load_model(model)
    formats = choose_formats(config, main, window, indexer)
    schedule = build_schedule(config, layers=layers)
    return [
        build_schema(config, spec, formats=formats, block_tokens=block_tokens) for spec in schedule
    ]
