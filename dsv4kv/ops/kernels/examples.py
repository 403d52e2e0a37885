"""Launches on tensors without data, made by the plans themselves: to compile and to look at."""

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.rope import Precision
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops.compressor import random_compressor
from dsv4kv.ops.kernels.launch import Launch
from dsv4kv.ops.kernels.step_write import plan_step_write
from dsv4kv.ops.rope import make_rope
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.writes import PartWrite

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
    if schema.indexer:
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
