"""What a step moves and computes, as tables over the length of a request, and stated rates.

The terms are those of ``dsv4kv.ops``, the same that ``dsv4kv bench`` counts: a decode step writes
a layer with one operation, scores keys, selects and attends, all in place; a prompt chunk inserts,
compresses and gathers what is visible. Sums over steps are differences of running sums.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
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
from dsv4kv.model.schema import LayerCacheSchema, layer_kinds
from dsv4kv.ops import spec
from dsv4kv.ops.work import Pooling, decode_reads, pooling_of
from dsv4kv.replay.clock.sources import find_gpu
from dsv4kv.replay.clock.weights import WeightModel
from dsv4kv.runs.quantities import COPIES, kind_of, yardsticks
from dsv4kv.runs.store import load_record

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ChunkTerm:
    """One kind of traffic of a prompt chunk, of all its layers.

    Attributes:
        token_bytes: For every token.
        kept_bytes: For every token whose row or window entry stays.
        kept_tokens: How many of these there are at most.
        ratio: Tokens of an entry.
        entry_bytes: For every entry completed.
    """

    token_bytes: int = 0
    kept_bytes: int = 0
    kept_tokens: int = 0
    ratio: int = 1
    entry_bytes: int = 0


READS = ("scores", "top-k", "attention")
"""Kinds of reads of a decode step, as in ``record.step``."""
_WORKED_OUT = 2
"""Tables that are remembered: of a trace, and of the stretch of it that is looked at first."""
_PER_WEIGHT = 2
"""A multiplication and an addition."""


class StepTables:
    """Work of every operation of a model's layers.

    Attributes:
        updates: int64[n]: bytes that a decode token writes that makes a request ``n`` tokens long.
        reads: int64[n] by kind: bytes that it reads for itself, and writes on the way.
        shared: int64[n]: bytes of the keys that a decode step reads once for all tokens of a
            request, which then has ``n``.
        operations: int64[n]: what it computes: every head attends to the window and to the entries
            that its layer reads, an indexer scores keys. Softmax, norms and quantisation are left
            out.
        visible: int64[n]: bytes that a prompt chunk reads that ends at ``n`` tokens.
    """

    def __init__(
        self, config: DSV4Config, schemas: Sequence[LayerCacheSchema], longest_tokens: int
    ) -> None:
        """Fill the tables up to ``longest_tokens``."""
        self._sums: dict[int, Ints] = {}
        lengths = np.arange(longest_tokens + 1, dtype=np.int64)
        self.updates, self.shared, self.operations, self.visible = np.zeros(
            (4, len(lengths)), dtype=np.int64
        )
        self.reads = {kind: np.zeros_like(lengths) for kind in READS}
        self._poolings: Counter[Pooling] = Counter()
        self._windows: Counter[PageLayout] = Counter()
        self._plain: Counter[tuple[EntryFormat, int]] = Counter()  # of one value; tokens of each
        self._seen: Counter[tuple[PageLayout, int]] = Counter()  # by prompt chunks
        owners = {schema.layer.layer_idx: schema for schema in schemas}
        keyed = keyed_layers([schema.layer for schema in schemas])
        for has_keys in (True, False):
            part = [each for each in schemas if (each.layer.layer_idx in keyed) == has_keys]
            for schema, layers in layer_kinds(part):
                self._count_writes(schema, layers, has_keys=has_keys)
        for schema in schemas:
            owner, ratio = owners[schema.layer.kv_owner], schema.layer.ratio
            pages = (owner.indexer if schema.layer.selects else None, owner.main)
            self._seen.update((page, ratio) for page in pages if page)
        self._add_updates(lengths)
        self._add_reads(config, schemas, lengths)
        terms = list(self._find_chunk_terms())
        most_kept = max((term.kept_tokens for term in terms), default=0)
        kept, zero = np.arange(most_kept + 1), np.zeros_like(lengths)
        self._kept = sum((t.kept_bytes * np.minimum(kept, t.kept_tokens) for t in terms), 0 * kept)
        self._grown = sum(
            (t.token_bytes * lengths + t.entry_bytes * (lengths // t.ratio) for t in terms), zero
        )

    def sums(self, active_parameters: int) -> Ints:
        """int64[n, 6]: what decoding every token of a request of ``n`` tokens costs, weights once.

        Updates, kinds of reads, operations, shared.
        """
        if active_parameters not in self._sums:
            operations = self.operations + _PER_WEIGHT * active_parameters
            reads = (self.reads[kind] for kind in READS)
            each = (self.updates, *reads, operations, self.shared)
            self._sums[active_parameters] = np.stack(each, axis=1).cumsum(axis=0)
        return self._sums[active_parameters]

    def weighed(self, weights: WeightModel) -> Tables:
        """The same, with the arithmetic and the bytes of weights."""
        sums = self.sums(weights.active_parameters)
        return Tables(sums, self.shared, self.visible, self._grown, self._kept, weights.step_bytes)

    def _find_chunk_terms(self) -> Iterator[ChunkTerm]:
        for ring, layers in self._windows.items():
            kept = layers * spec.insert_bytes(ring.format, 1)
            yield ChunkTerm(kept_bytes=kept, kept_tokens=ring.entries)
        for (entry, ratio), layers in self._plain.items():
            yield ChunkTerm(ratio=ratio, entry_bytes=layers * spec.insert_bytes(entry, 1))
        for pool, layers in self._poolings.items():
            cost = partial(spec.compress_chunk_bytes, pool, pool.entry)
            row, entry_bytes = layers * cost(1, 0, 0), layers * cost(0, 1, 0)
            yield ChunkTerm(row, row, pool.state_rows, pool.ratio, entry_bytes)

    def _count_writes(self, schema: LayerCacheSchema, layers: int, *, has_keys: bool) -> None:
        if schema.window:
            self._windows[schema.window] += layers
        for indexer in (False, True) if has_keys else (False,):
            page = schema.indexer if indexer else schema.main
            if pooling := pooling_of(schema, indexer=indexer):
                self._poolings[pooling] += layers
            elif page:
                self._plain[page.format, schema.layer.ratio] += layers

    def _add_updates(self, lengths: Ints) -> None:
        for ring, layers in self._windows.items():
            self.updates += layers * spec.insert_bytes(ring.format, 1)
        for (entry, ratio), layers in self._plain.items():
            self.updates += layers * spec.insert_bytes(entry, 1) * (lengths % ratio == 0)
        for pool, layers in self._poolings.items():
            cost = partial(spec.step_write_bytes, pool, pool.entry, 1)
            row, whole = (layers * cost(entries, online=pool.online) for entries in (0, 1))
            self.updates += row + (lengths % pool.ratio == 0) * (whole - row)
        self.updates[0] = 0

    def _add_reads(
        self, config: DSV4Config, schemas: Sequence[LayerCacheSchema], lengths: Ints
    ) -> None:
        for read in decode_reads(config, schemas, lengths):
            layers = len(read.layers)
            self.reads[kind_of(read.operation)] += layers * (read.own_bytes + read.query_bytes)
            self.shared += layers * read.shared_bytes
            self.operations += layers * read.flops
        for (page, ratio), layers in self._seen.items():
            entries = lengths // ratio
            blocks = -(-entries // page.entries)
            self.visible += layers * spec.gather_all_bytes(page.format, entries, blocks)


@lru_cache(maxsize=_WORKED_OUT)
def fill_tables(
    config: DSV4Config, schemas: tuple[LayerCacheSchema, ...], longest_tokens: int
) -> StepTables:
    """Tables up to ``longest_tokens``; servers that are laid out otherwise have the same."""
    return StepTables(config, schemas, longest_tokens)


def find_rates(cost: CostSection) -> Rates:
    """Work out the rates.

    Raises:
        ConfigError: Two bandwidths or none, an unknown GPU, a record without peaks.
        RecordError: The record cannot be read.
    """
    gbps, source = _bandwidth(cost)
    return Rates(
        bytes_per_s=gbps * 1e9 * cost.gpus,
        operations_per_s=cost.tflops * 1e12 * cost.gpus,
        overhead_s=cost.overhead_us / 1e6,
        source=source,
    )


def _bandwidth(cost: CostSection) -> tuple[float, str]:
    """GB/s of one GPU, and how that is known."""
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
