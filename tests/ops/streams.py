"""Requests fed to the compressor in pieces: token by token, in chunks, or in turns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.storage import Compressor, PageStore


@dataclass
class Request:
    """One request in slot 0 of a state; entry j goes to physical entry j of the store."""

    compressor: Compressor
    state: Tensor
    store: PageStore
    kv: Tensor
    score: Tensor
    fed: int = 0
    backend: Any = cpu

    def append(self, count: int) -> None:
        """Feed ``count`` tokens one at a time, flushing each entry as it completes."""
        slot = torch.tensor([0])
        for t in range(self.fed, self.fed + count):
            token, position = slice(t, t + 1), torch.tensor([t])
            given = {"compressor": self.compressor, "state": self.state}
            given |= {"slots": slot, "positions": position}
            self.backend.state_append(**given, kv=self.kv[token], score=self.score[token])
            if (t + 1) % self.compressor.ratio == 0:
                entries = position // self.compressor.ratio
                self.backend.flush(**given, store=self.store, entries=entries)
        self.fed += count

    def chunk(self, count: int) -> None:
        """Feed ``count`` tokens at once."""
        m, tokens = self.compressor.ratio, slice(self.fed, self.fed + count)
        self.backend.compress_chunk(
            compressor=self.compressor,
            state=self.state,
            kv=self.kv[tokens],
            score=self.score[tokens],
            slot=0,
            start=self.fed,
            store=self.store,
            entries=torch.arange(tokens.start // m, tokens.stop // m),
        )
        self.fed += count

    def feed(self, pieces: Iterable[tuple[str, int]]) -> None:
        """Feed pieces of (``append`` or ``chunk``, tokens)."""
        for way, count in pieces:
            {"append": self.append, "chunk": self.chunk}[way](count)


def partitions(ratio: int, longest: int, most_pieces: int) -> st.SearchStrategy[list[int]]:
    """Sizes of successive pieces: single tokens, whole groups, nearly whole ones, long ones."""
    size = st.one_of(
        st.integers(1, 3), st.integers(ratio - 1, ratio + 1), st.integers(ratio, longest)
    )
    return st.lists(size, min_size=1, max_size=most_pieces)
