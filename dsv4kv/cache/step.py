"""The tokens of one step: built once, used by every layer."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.table import BlockTable
from dsv4kv.cache.view import Completed
from dsv4kv.errors import CacheError, NotOwner


class StepBatch:
    """Which tokens of which requests a step processes, on the host.

    Attributes:
        request_slots: int64[B], slot of every request.
        request_ids: int64[T], request (0 … B − 1) of every token, ascending.
        token_slots: int64[T], slot of every token.
        positions: int64[T], position of every token, ascending within a request.
        tokens_after: int64[B], tokens of every request once the step is done.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        request_slots: ArrayLike,
        before: ArrayLike,
        after: ArrayLike,
    ) -> None:
        """Tokens before … after − 1 of every request; the step must have been prepared.

        Raises:
            CacheError: A request is not prepared for that many tokens, or gains none.
            NotOwner: No request runs in a slot, or one is named twice.
        """
        # Copies: a step stays what it is when the caller moves its own positions on.
        slots, first, end = (np.array(a, dtype=np.int64) for a in (request_slots, before, after))
        manager.check_running(slots)
        counts = end - first
        if slots.size == 0 or counts.min() < 1 or not np.array_equal(manager.tokens[slots], end):
            raise CacheError("a step takes at least one prepared token of every request.")
        self._manager = manager
        self._slots = slots
        self._after = end
        self._generations = manager.generations(slots)
        self._max_request_tokens = int(counts.max())
        ids = np.repeat(np.arange(len(slots), dtype=np.int64), counts)
        ends = np.cumsum(counts)
        self._positions: NDArray[np.int64] = np.arange(len(ids)) + (end - ends)[ids]
        self._token_slots = slots[ids]
        self.request_slots = torch.from_numpy(slots)
        self.request_ids = torch.from_numpy(ids)
        self.token_slots = torch.from_numpy(self._token_slots)
        self.positions = torch.from_numpy(self._positions)
        self.tokens_after = torch.from_numpy(end)
        self._completed: dict[tuple[int, int, int, int], Completed] = {}
        self._token_entries: dict[tuple[int, int, int, int], Tensor] = {}
        self._lengths: dict[int, Tensor] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, T."""
        return len(self._positions)

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request."""
        return self._max_request_tokens

    @property
    def num_requests(self) -> int:
        """Requests of the step, B."""
        return len(self._slots)

    def check_current(self) -> None:
        """Raise ``NotOwner`` if a request has left its slot or was prepared for others since.

        Its blocks may then belong to another request.
        """
        manager, slots = self._manager, self._slots
        if manager.tokens[slots].tobytes() != self._after.tobytes() or (
            manager.generations(slots).tobytes() != self._generations.tobytes()
        ):
            raise NotOwner(
                "a request of this step has left its slot or moved on since: make a new step."
            )

    def chunk_start(self) -> tuple[int, int]:
        """Slot of the first request and position of its first token."""
        return int(self._slots[0]), int(self._positions[0])

    def lengths(self, ratio: int) -> Tensor:
        """Valid entries of every request after the step, int64[B]: floor(tokens / ratio)."""
        if ratio not in self._lengths:
            self._lengths[ratio] = torch.from_numpy(self._after // ratio)
        return self._lengths[ratio]

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """Entries of ``ratio`` that the step completes, ``per_block`` entries to a block."""
        key = (id(table), lane, ratio, table.returns)
        if key not in self._completed:
            done = (self._positions + 1) % ratio == 0
            slots, positions = self._token_slots[done], self._positions[done]
            logical = positions // ratio
            blocks = table.blocks[lane, slots, logical // per_block].astype(np.int64)
            entries = blocks * per_block + logical % per_block
            self._completed[key] = Completed(*map(torch.from_numpy, (slots, positions, entries)))
        return self._completed[key]

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """The entry of ``ratio`` that each token completes, int64[T]; −1 where none."""
        key = (id(table), lane, ratio, table.returns)
        if key not in self._token_entries:
            done = self.completed(table, lane, ratio, per_block)
            entries = torch.full((self.num_tokens,), -1)
            entries[(self.positions + 1) % ratio == 0] = done.entries
            self._token_entries[key] = entries
        return self._token_entries[key]
