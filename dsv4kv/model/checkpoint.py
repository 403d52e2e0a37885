"""What a request needs besides blocks to go on behind a prefix that ends at a whole block."""

from dataclasses import replace

from dsv4kv.model.schema import LayerCacheSchema

CHECKPOINT_TOKENS = 128
"""Groups of every compressor end at its multiples: a checkpoint is at one of them."""


def at_whole_block(schema: LayerCacheSchema) -> LayerCacheSchema:
    """A layer as a checkpoint holds it: its window, and the state that the next group pools.

    Only where groups overlap does the next one pool tokens before the block's end, which are
    those layers that have an indexer (CSA). Of an HCA layer, whose groups are 128 tokens that
    stand alone, nothing is pending there (arXiv:2606.19348, 3.5.2).
    """
    if schema.indexer:
        return schema
    return replace(schema, state_shape=(), indexer_state_shape=())


def checkpoint_bytes(schema: LayerCacheSchema) -> int:
    """Bytes of a layer in one checkpoint."""
    return at_whole_block(schema).slot_bytes
