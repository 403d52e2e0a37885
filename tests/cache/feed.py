"""Feeds a cache through its handles, and tells from the inputs alone what must come back."""

import torch
from torch import Tensor

from dsv4kv.cache.handle import CompressedCache, Compressors, LayerCache, LayerCacheHandle
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.compressor import make_rope, random_compressor

TOKENS = 160  # of every request's data
REQUESTS = 4


def draw_compressors(plan: CachePlan) -> Compressors:
    """Random compressors for every layer that owns compressed KV."""
    generator = torch.Generator().manual_seed(0)
    compressors: Compressors = {}
    for schema in plan.schemas:
        spec = schema.layer
        if spec.owns_kv:
            rope = make_rope(plan.config, spec.ratio, plan.max_context_tokens, plan.rope)
            main = random_compressor(plan.config, spec, generator, rope=rope)
            indexer = random_compressor(
                plan.config, spec, generator, rope=rope, indexer=True, hadamard=True
            )
            compressors[spec.layer_idx] = (main, indexer if schema.indexer else None)
    return compressors


class Feed:
    """Random tokens of four requests, different in every layer, and what they must become.

    ``drafts`` data, of no request, stands for what a rejected draft writes.
    """

    def __init__(self, layers: dict[int, LayerCache]) -> None:
        self.layers = layers
        generator = torch.Generator().manual_seed(1)

        def draw(channels: int) -> Tensor:
            return torch.randn(REQUESTS + 1, TOKENS, channels, generator=generator)

        self.windows = {index: draw(512).bfloat16() for index in layers}
        self.inputs = {
            (index, indexer): (draw(channels_of(part)), draw(channels_of(part)))
            for index, layer in layers.items()
            for indexer, part in parts_of(layer).items()
        }
        self.request_of: dict[int, int] = {}  # by slot

    def step(self, manager: KVCacheManager, after: dict[int, int], drafts: int = 0) -> StepBatch:
        """Prepare and write a step; the last ``drafts`` tokens of each request are drafts."""
        slots, ends = list(after), list(after.values())
        before = [int(manager.tokens[slot]) for slot in slots]
        prepare_forward(manager, slots, before, ends)
        batch = StepBatch(manager, slots, before, ends)
        positions = batch.positions
        requests = torch.tensor([self.request_of[slot] for slot in batch.token_slots.tolist()])
        drafted = positions >= (batch.tokens_after - drafts)[batch.request_ids]
        requests[drafted] = REQUESTS
        chunk = len(slots) == 1 and not drafts
        for index, layer in self.layers.items():
            handle = LayerCacheHandle(layer, batch)
            handle.write_swa(self.windows[index][requests, positions])
            for indexer in parts_of(layer):
                kv, score = (x[requests, positions] for x in self.inputs[index, indexer])
                if chunk:
                    handle.compress_chunk(kv, score, indexer=indexer)
                else:
                    handle.append_state(kv, score, indexer=indexer)
                    handle.flush(indexer=indexer)
        return batch

    def window(self, index: int, slot: int, position: int) -> Tensor:
        """A window entry as it must come back: bf16[D]."""
        values = self.windows[index][self.request_of[slot], position]
        ring = self.layers[index].window
        assert ring is not None
        return round_trip(ring.layout.format, values)

    def entry(self, index: int, slot: int, number: int, *, indexer: bool) -> Tensor:
        """A compressed entry as it must come back, pooled in float64: bf16[D]."""
        part = parts_of(self.layers[index])[indexer]
        (compressor, _), request = part.pooling(), self.request_of[slot]
        first = number * compressor.ratio
        positions = torch.arange(
            first + compressor.ratio - compressor.rows, first + compressor.ratio
        )
        kv, score = (x[request, positions.clamp(min=0)] for x in self.inputs[index, indexer])
        score = score + compressor.ape[positions % compressor.ratio]
        score[positions < 0] = -torch.inf
        kv, score = reference.group_of_tokens(compressor, kv, score)
        value = reference.finish(compressor, reference.pool(kv, score), first)
        return round_trip(part.store.layout.format, value)


def channels_of(part: CompressedCache) -> int:
    return part.pooling()[0].channels


def parts_of(layer: LayerCache) -> dict[bool, CompressedCache]:
    """Compressed KV (False) and indexer keys (True), as far as the layer has them."""
    every = {False: layer.main, True: layer.indexer}
    return {indexer: part for indexer, part in every.items() if part is not None}


def round_trip(entry: EntryFormat, values: Tensor) -> Tensor:
    """bf16[D] through its stored bytes."""
    data, scales = reference_codec.encode(entry, values.float().tolist())
    return torch.tensor(reference_codec.decode(entry, data, scales)).bfloat16()
