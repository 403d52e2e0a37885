"""Lengths of a trace's prompts or outputs: how often each occurs, and what follows from that."""

from array import array
from dataclasses import dataclass

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints

_BATCH = 2**20


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are lengths that occur (nearest rank)."""

    total: int
    p50: int
    p90: int
    p99: int
    max: int


class LengthCounts:
    """Counts how often each length occurs: memory is that of the different ones."""

    def __init__(self) -> None:
        self._batch = array("i")
        self._lengths: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)

    def add(self, lengths: Ints) -> None:
        """Count lengths."""
        self._batch.frombytes(lengths.astype(np.intc).tobytes())
        if len(self._batch) >= _BATCH:
            self._fold()

    def summarize(self) -> LengthSummary:
        """Summarise at least one length."""
        self._fold()
        lengths, up_to = self._lengths, self._counts.cumsum()
        ranks = [-(-percent * int(up_to[-1]) // 100) for percent in (50, 90, 99)]
        p50, p90, p99 = lengths[up_to.searchsorted(ranks)].tolist()
        total = int((lengths * self._counts).sum())
        return LengthSummary(total, p50, p90, p99, int(lengths[-1]))

    def _fold(self) -> None:
        new, counts = np.unique(np.frombuffer(self._batch, np.intc), return_counts=True)
        self._batch = array("i")
        both = np.concatenate([self._lengths, new])
        self._lengths, place = np.unique(both, return_inverse=True)
        together = np.zeros(len(self._lengths), np.int64)
        np.add.at(together, place, np.concatenate([self._counts, counts]))
        self._counts = together
