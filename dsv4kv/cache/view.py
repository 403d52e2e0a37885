"""What operations read of a step, as tensors on the device of the cache."""

from typing import Protocol

from torch import Tensor

from dsv4kv.cache.table import BlockTable

EntryGroup = tuple[BlockTable, int, int, int]
"""Table, lane, ratio and entries per block: layers that agree in them write the same entries."""


class Completed:
    """Tokens of a step that complete an entry of one compress ratio.

    Attributes:
        slots: int64[E], slots of their requests.
        positions: int64[E], their positions; (position + 1) mod ratio is 0.
        entries: int64[E], physical entries to write, in the pages of one table lane.
    """

    def __init__(self, slots: Tensor, positions: Tensor, entries: Tensor) -> None:
        self.slots = slots
        self.positions = positions
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)


class StepView(Protocol):
    """The numbers of a step; a ``StepBatch`` is its own view on the CPU."""

    @property
    def request_slots(self) -> Tensor:
        """Slot of every request, int64[B]; −1 is no request."""

    @property
    def token_slots(self) -> Tensor:
        """Slot of every token, int64[T]; −1 is no token."""

    @property
    def positions(self) -> Tensor:
        """Position of every token, int64[T]."""

    @property
    def tokens_after(self) -> Tensor:
        """Tokens of every request after the step, int64[B]."""

    @property
    def num_requests(self) -> int:
        """Requests there is room for, B."""

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request."""

    def check_current(self) -> None:
        """Raise ``NotOwner`` if the blocks of a request may be another's by now."""

    def chunk_start(self) -> tuple[int, int]:
        """Slot of the first request and position of its first token."""

    def lengths(self, ratio: int) -> Tensor:
        """Valid entries of every request after the step, int64[B]."""

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """Entries of ``ratio`` that the step completes; an entry of −1 is none."""

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """The entry of ``ratio`` that each token completes, int64[T]; −1 where none."""
