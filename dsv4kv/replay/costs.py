"""What a step moves and computes, as tables over the length of a request, and stated rates.

Terms are as in ``dsv4kv bench`` (``dsv4kv.ops``): a decode step writes, scores, selects and
attends in place; a prompt chunk inserts, compresses and gathers what is visible.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from dsv4kv.config.replay import CostSection
from dsv4kv.core.clock import Rates, Tables
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.schedule import keyed_layers
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import spec
from dsv4kv.ops.work import Pooling, decode_reads, pooled_bytes, pooling_of
from dsv4kv.replay.clock.sources import find_gpu
from dsv4kv.replay.clock.steps import WeightModel
from dsv4kv.runs.quantities import COPIES, KINDS, yardsticks
from dsv4kv.runs.store import load_record

Ints = NDArray[np.int64]


READS = ("scores", "top-k", "attention")  # kinds of reads of a decode step, as in ``record.step``
_KINDS = {name: kind for kind in READS for name in KINDS[kind]}
_WORKED_OUT = 2
"""Tables that are remembered: of a trace, and of the stretch of it that is looked at first."""
_PER_WEIGHT = 2  # a multiplication and an addition


class StepTables:
    """Work of every operation of a model's layers, by tokens of a request.

    Attributes:
        updates: int64[n]: bytes that the decode token writes that makes it ``n`` tokens long.
        reads: int64[n] by kind: bytes that it reads for itself, and writes on the way.
        shared: int64[n]: bytes of the keys that a decode step reads once for all its tokens.
        operations: int64[n]: of attention and scores, without softmax, norms, quantisation.
        visible: int64[n]: bytes that a prompt chunk reads that ends there.
    """

    def __init__(
        self, config: DSV4Config, schemas: Sequence[LayerCacheSchema], longest_tokens: int
    ) -> None:
        self._sums: dict[int, Ints] = {}
        lengths = np.arange(longest_tokens + 1, dtype=np.int64)
        self.updates, self.shared, self.operations, self.visible, self._grown = np.zeros(
            (5, len(lengths)), dtype=np.int64
        )
        self.reads = {kind: np.zeros_like(lengths) for kind in READS}
        self._add_writes(schemas, lengths)
        for read in decode_reads(config, schemas, lengths):
            layers = len(read.layers)
            self.reads[_KINDS[read.operation]] += layers * (read.own_bytes + read.query_bytes)
            self.shared += layers * read.shared_bytes
            self.operations += layers * read.flops
        owners = {schema.layer.layer_idx: schema for schema in schemas}
        seen: Counter[tuple[PageLayout, int]] = Counter()  # by prompt chunks
        for schema in schemas:
            owner, ratio = owners[schema.layer.kv_owner], schema.layer.ratio
            pages = (owner.indexer if schema.layer.selects else None, owner.main)
            seen.update((page, ratio) for page in pages if page)
        for (page, ratio), layers in seen.items():
            entries = lengths // ratio
            blocks = -(-entries // page.entries)
            self.visible += layers * spec.gather_all_bytes(page.format, entries, blocks)

    def _add_writes(self, schemas: Sequence[LayerCacheSchema], lengths: Ints) -> None:
        poolings: Counter[Pooling] = Counter()
        windows: Counter[PageLayout] = Counter()
        plain: Counter[tuple[EntryFormat, int]] = Counter()  # of one value; tokens of each
        keyed = keyed_layers([schema.layer for schema in schemas])
        for schema in schemas:
            if schema.window:
                windows[schema.window] += 1
            for indexer in (False, True) if schema.layer.layer_idx in keyed else (False,):
                page = schema.indexer if indexer else schema.main
                if pooling := pooling_of(schema, indexer=indexer):
                    poolings[pooling] += 1
                elif page:
                    plain[page.format, schema.layer.ratio] += 1
        kept = [(0, 0)]  # bytes for each of the last so many tokens of a chunk
        for ring, layers in windows.items():
            written = layers * spec.insert_bytes(ring.format, 1)
            self.updates += written
            kept.append((written, ring.entries))
        for (form, ratio), layers in plain.items():
            written = layers * spec.insert_bytes(form, 1)
            self.updates += written * (lengths % ratio == 0)
            self._grown += written * (lengths // ratio)
        for pool, layers in poolings.items():
            row, whole, chunk_row, entry = (layers * size for size in pooled_bytes(pool))
            self.updates += row + (lengths % pool.ratio == 0) * (whole - row)
            self._grown += chunk_row * lengths + entry * (lengths // pool.ratio)
            kept.append((chunk_row, pool.state_rows))
        self.updates[0] = 0
        last = np.arange(max(tokens for _, tokens in kept) + 1)
        self._kept: Ints = sum(
            (size * np.minimum(last, tokens) for size, tokens in kept), 0 * last
        )

    def sums(self, active_parameters: int) -> Ints:
        """int64[n, 6]: updates, kinds of reads, operations, shared keys, summed over tokens."""
        if active_parameters not in self._sums:
            operations = self.operations + _PER_WEIGHT * active_parameters
            reads = (self.reads[kind] for kind in READS)
            each = (self.updates, *reads, operations, self.shared)
            self._sums[active_parameters] = np.stack(each, axis=1).cumsum(axis=0)
        return self._sums[active_parameters]

    def weighed(self, weights: WeightModel) -> Tables:
        sums = self.sums(weights.active_parameters)
        return Tables(sums, self.shared, self.visible, self._grown, self._kept, weights.step_bytes)


@lru_cache(maxsize=_WORKED_OUT)
def fill_tables(
    config: DSV4Config, schemas: tuple[LayerCacheSchema, ...], longest_tokens: int
) -> StepTables:
    """Tables up to ``longest_tokens``; servers that are laid out otherwise have the same."""
    return StepTables(config, schemas, longest_tokens)


def find_rates(cost: CostSection) -> Rates:
    """Work out the rates; raises ``ConfigError`` or ``RecordError``."""
    gbps, source = _bandwidth(cost)
    moved, computed = gbps * 1e9 * cost.gpus, cost.tflops * 1e12 * cost.gpus
    return Rates(moved, computed, cost.overhead_us / 1e6, source)


def _bandwidth(cost: CostSection) -> tuple[float, str]:
    if cost.bandwidth_gbps is not None and cost.peaks is not None:
        raise ConfigError("cost.bandwidth_gbps and cost.peaks both give a bandwidth: keep one.")
    if cost.bandwidth_gbps is not None:
        return cost.bandwidth_gbps, "as given"
    if cost.peaks is not None:
        return _measured(cost.peaks)
    gpu = find_gpu(cost)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue: give cost.bandwidth_gbps."
        )
    share = f"{cost.bandwidth_share:.0%} of {gpu.bandwidth_gbps:,} GB/s, {gpu.source}"
    return gpu.bandwidth_gbps * cost.bandwidth_share, share


def _measured(path: str) -> tuple[float, str]:
    for case in load_record(Path(path)).cases:
        for copy in yardsticks(case)[:1]:
            if copy.name in ("memcpy", *COPIES) and copy.samples_ns:
                return copy.bytes / median(copy.samples_ns), f"copy measured in {path}"
    raise ConfigError(
        f"{path} has no measured copy: take the record of a run of dsv4kv bench with real data."
    )
