"""Arithmetic of a token, by the length of its request: matrices, attention and indexer."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.replay.bytes_model import Ints

_PER_WEIGHT = 2
"""A multiplication and an addition."""
_PER_CHANNEL = 4
"""Score and weighted sum of attention, both of them a multiplication and an addition."""


def token_operations(
    config: DSV4Config,
    schemas: Sequence[LayerCacheSchema],
    active_parameters: int,
    longest_tokens: int,
) -> Ints:
    """int64[n]: operations of the token that makes a request ``n`` tokens long.

    Every head attends to the window and to the entries that its layer reads; an indexer scores
    every visible entry (arXiv:2606.19348). Softmax, norms and quantisation are left out.
    """
    lengths = np.arange(longest_tokens + 1, dtype=np.int64)
    total = np.full_like(lengths, _PER_WEIGHT * active_parameters)
    window = np.minimum(lengths, config.window_tokens)
    per_entry = _PER_CHANNEL * config.num_heads * config.head_dim
    per_key = _PER_WEIGHT * config.index_heads * config.index_dim
    for schema in schemas:
        spec = schema.layer
        entries = lengths // spec.ratio if spec.ratio else np.zeros_like(lengths)
        chosen = entries
        if spec.ratio and spec.attn is not AttentionType.HCA:
            chosen = np.minimum(entries, config.index_topk)
            total += per_key * entries
        total += per_entry * (chosen + (window if schema.window else 0))
    return total
