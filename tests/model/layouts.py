"""Schemas of whole models, for tests."""

from collections.abc import Collection

from dsv4kv.model import (
    LayerCacheSchema,
    build_schedule,
    build_schema,
    choose_formats,
    load_model,
)


def schemas_of(
    model: str,
    main: str | None = None,
    indexer: str | None = None,
    *,
    window: str | None = None,
    layers: Collection[int] | None = None,
) -> list[LayerCacheSchema]:
    """Schemas of a preset with 128-token blocks; None takes the model's own formats."""
    config = load_model(model)
    formats = choose_formats(config, main, window, indexer)
    schedule = build_schedule(config, layers=layers)
    return [build_schema(config, spec, formats=formats) for spec in schedule]
