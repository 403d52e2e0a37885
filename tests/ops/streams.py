"""Requests fed to the compressor in pieces: token by token, in chunks, or in turns."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

import torch
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.storage import PageStore


@dataclass
class Request:
    """One request in slot 0 of a state; entry j goes to physical entry j of the store.

    Attributes:
        compressor: Parameters.
        state: float32[1, …], ring or online.
        store: Where entries go.
        kv: Inputs of every token, float32[n, C].
        score: The same.
        fed: Tokens fed so far.
        backend: Operations used.
    """

    compressor: Compressor
    state: Tensor
    store: PageStore
    kv: Tensor
    score: Tensor
    fed: int = 0
    backend: ModuleType = cpu

    def append(self, count: int) -> None:
        """Feed ``count`` tokens one at a time, flushing each entry as it completes."""
        slot = torch.tensor([0])
        for t in range(self.fed, self.fed + count):
            token, position = slice(t, t + 1), torch.tensor([t])
            self.backend.state_append(
                self.compressor, self.state, self.kv[token], self.score[token], slot, position
            )
            if (t + 1) % self.compressor.ratio == 0:
                entry = position // self.compressor.ratio
                self.backend.flush(self.compressor, self.state, slot, position, self.store, entry)
        self.fed += count

    def chunk(self, count: int) -> None:
        """Feed ``count`` tokens at once."""
        m, tokens = self.compressor.ratio, slice(self.fed, self.fed + count)
        entries = torch.arange(tokens.start // m, tokens.stop // m)
        self.backend.compress_chunk(
            self.compressor,
            self.state,
            self.kv[tokens],
            self.score[tokens],
            0,
            self.fed,
            self.store,
            entries,
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
