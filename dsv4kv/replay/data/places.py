"""Where what a request gathers came from: its own computing, shared blocks, a checkpoint."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import Ids

Kind = Literal["fresh", "shared", "copied", "recomputed", "resumed"]
KINDS: tuple[Kind, ...] = ("fresh", "shared", "copied", "recomputed", "resumed")
_FRESH, _SHARED, _COPIED, _RECOMPUTED, _RESUMED = range(len(KINDS))
UNKNOWN = -1
"""An entry that a truncated window left inexact; nobody reads it once its chunk has ended."""

Kinds = NDArray[np.int64]
"""Places in ``KINDS``, or ``UNKNOWN``."""


@dataclass(frozen=True)
class Running:
    """A request in a slot, and where it began.

    Attributes:
        slot: Its slot.
        resumed_tokens: Tokens behind which it went on; 0 where it computes everything.
        found_tokens: Tokens whose blocks it found.
        exact: Window and state there were what they had to be; else a stretch before the end of
            what was found is computed again to have them.
        again: It had been evicted and started again.
        lost: Whether each shared block of its prompt had been cached and evicted, bool[n].
        shared_tokens: Tokens of a shared block.
        block_tokens: Tokens of a block.
    """

    slot: int
    resumed_tokens: int
    found_tokens: int
    exact: bool
    again: bool
    lost: NDArray[np.bool_]
    shared_tokens: int
    block_tokens: int

    def kinds_of_entries(self, entries: Ids, ratio: int, pooled: int, before: int) -> Kinds:
        """Where entries int64[n] came from: ``pooled`` tokens each, the last ``ratio`` its own.

        ``before`` are the request's tokens before the step that gathers them.
        """
        ends = (entries + 1) * ratio
        # blocks that were found are named as soon as the tokens before them are there
        named = max(self.resumed_tokens, min(self.found_tokens, before))
        named -= named % self.block_tokens
        kinds = self._computed(entries * ratio)
        kinds[(ends > self.resumed_tokens) & self._straddles(ends - pooled)] = _RESUMED
        kinds[ends <= self.resumed_tokens] = _COPIED
        kinds[ends <= named] = _SHARED
        if not self.exact:
            kinds[(ends > max(named, self.resumed_tokens)) & (ends <= self.found_tokens)] = UNKNOWN
        return kinds

    def kinds_of_window(self, positions: Ids) -> Kinds:
        """Where window entries int64[n] came from."""
        kinds = self._computed(positions)
        kinds[self._straddles(positions)] = _RESUMED
        return kinds

    def _straddles(self, firsts: Ids) -> NDArray[np.bool_]:
        """What needs tokens that a checkpoint brought back."""
        return (firsts < self.resumed_tokens) & (self.exact and self.resumed_tokens > 0)

    def _computed(self, positions: Ids) -> Kinds:
        """Computed by the request, for the first time or again."""
        places = positions // self.shared_tokens
        kinds = np.full(len(positions), _RECOMPUTED if self.again else _FRESH)
        if len(self.lost):
            known = places < len(self.lost)
            kinds[known & self.lost[np.minimum(places, len(self.lost) - 1)]] = _RECOMPUTED
        return kinds
