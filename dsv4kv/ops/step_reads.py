"""What the reads of a decode step move and compute, layer by layer, as the schedule says.

Of one request: a step of several is their sum. Needs no tensor and no GPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from dsv4kv.model.config import Candidates, DSV4Config
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import flops, traffic


@dataclass(frozen=True)
class Read:
    """An operation on one layer.

    Attributes:
        layer_idx: The layer.
        operation: Its name in ``ops.contract``.
        cache_bytes: Keys, entries and scores, and where they are.
        query_bytes: The other useful bytes: queries, outputs, weights, as many at any context.
        flops: Floating-point operations of its matrix products.
    """

    layer_idx: int
    operation: str
    cache_bytes: int
    query_bytes: int = 0
    flops: int = 0

    @property
    def bytes(self) -> int:
        """Useful bytes, as ``ops.traffic`` counts them."""
        return self.cache_bytes + self.query_bytes


def decode_reads(
    config: DSV4Config, schemas: Sequence[LayerCacheSchema], tokens: int, drafts: int = 0
) -> list[Read]:
    """Reads of the step after which a request has ``tokens`` tokens, the last ``drafts`` drafts.

    schemas: layers in order; those that own no entries read their owner's. A layer for which
    another one chooses (IndexCache, DeepSeek-V4.1) only attends. Where the source of candidate
    blocks is held, later layers score those alone. DeepSeek-V3.2, whose values are a part of its
    entries, is not among what ``attend`` reads.
    """
    layers = {schema.layer.layer_idx: schema for schema in schemas}
    seen = [tokens - drafts + i for i in range(drafts + 1)]
    each = (_layer_reads(config, layers, schema, seen) for schema in schemas)
    return list(chain.from_iterable(each))


def _layer_reads(
    config: DSV4Config,
    layers: dict[int, LayerCacheSchema],
    schema: LayerCacheSchema,
    seen: list[int],
) -> Iterator[Read]:
    spec, owner = schema.layer, layers[schema.layer.kv_owner]
    if owner.indexer and spec.selects:
        source = config.candidates.source if config.candidates else -1
        narrow = source in layers and spec.layer_idx > source
        lengths = [n // spec.ratio for n in seen]
        yield from _choice(config, schema, owner, lengths, config.candidates if narrow else None)
        if config.candidates and spec.layer_idx == source:
            chosen = len(seen) * config.candidates.blocks
            moved = traffic.select_blocks_bytes(sum(lengths), chosen)
            yield Read(source, "select_blocks", moved)
    if schema.window:
        yield _attention(config, schema, owner, seen)


def _choice(
    config: DSV4Config,
    schema: LayerCacheSchema,
    owner: LayerCacheSchema,
    lengths: list[int],
    candidates: Candidates | None,
) -> Iterator[Read]:
    """Queries, scores and top k of a layer; ``lengths``: keys that each query token sees."""
    assert owner.indexer
    index, form = schema.layer.layer_idx, owner.indexer.format
    tokens, heads, dims = len(lengths), config.index_heads, config.index_dim
    query = traffic.indexer_query_bytes(tokens, heads, dims, config.rope_dim)
    yield Read(index, "indexer_query", 0, query)

    scores = sum(_among(candidates, n) for n in lengths)
    blocks = sum(_kept(candidates, n) for n in lengths) if candidates else 0
    keys = scores if candidates else max(lengths)
    places = blocks or -(-keys // owner.indexer.entries)
    yield Read(
        index,
        "index_scores",
        traffic.index_scores_bytes(form, keys, places, scores, 0),
        traffic.index_scores_bytes(form, 0, 0, 0, tokens * heads),
        flops.index_scores_flops(scores, heads, dims),
    )
    moved = traffic.select_topk_bytes(scores, blocks, tokens * config.index_topk)
    yield Read(index, "select_topk", moved)


def _kept(candidates: Candidates, length: int) -> int:
    """Blocks that are chosen among ``length`` entries."""
    return min(-(-length // candidates.block_entries), candidates.blocks)


def _among(candidates: Candidates | None, length: int) -> int:
    """Keys that are scored among ``length``: those of whole blocks, and of the newest, or all."""
    if candidates is None or not length:
        return length
    size = candidates.block_entries
    return (_kept(candidates, length) - 1) * size + (length - 1) % size + 1


def _attention(
    config: DSV4Config, schema: LayerCacheSchema, owner: LayerCacheSchema, seen: list[int]
) -> Read:
    """Attention to the window and, where there are any, to chosen or all compressed entries."""
    spec, window = schema.layer, schema.window
    assert window
    near = sum(min(n, config.window_tokens) for n in seen)
    moved, far = traffic.attended_bytes(window.format, near, 0), 0
    if owner.main and spec.ratio:
        lengths = [n // spec.ratio for n in seen]
        if spec.attn is AttentionType.HCA:
            far = sum(lengths)
            places = sum(-(-n // owner.main.entries) for n in lengths)
        else:
            far = sum(min(n, config.index_topk) for n in lengths)
            places = len(seen) * config.index_topk
        moved += traffic.attended_bytes(owner.main.format, far, places)
    query = traffic.attend_query_bytes(len(seen), config.num_heads, config.head_dim)
    work = flops.attend_flops(near + far, config.num_heads, config.head_dim)
    return Read(spec.layer_idx, "attend", moved, query, work)
