"""A step's numbers in memory that never moves: what a captured graph reads."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.step import StepBatch
from dsv4kv.cache.table import BlockTable
from dsv4kv.cache.view import Completed, EntryGroup

EntryFamily = tuple[BlockTable, int, int]
"""Table, ratio and entries per block: its lanes' entries are worked out together."""

NO_SLOT, NO_ENTRY = -1, -1


class StaticStep:
    """Room for the numbers of ``most_requests`` requests of ``tokens_each`` tokens.

    ``fill`` takes a step's numbers over in one transfer. What is left over is −1, no request and
    no token, and operations do nothing for it. The entries that tokens complete are worked out
    where the numbers are, from the tables there.
    """

    def __init__(
        self,
        groups: Iterable[EntryGroup],
        most_requests: int,
        tokens_each: int,
        device: torch.device,
    ) -> None:
        """Lay out the numbers; ``groups`` are what layers ask ``completed`` for."""
        self.tokens_each = tokens_each
        tokens = most_requests * tokens_each
        families = dict.fromkeys((table, ratio, each) for table, _, ratio, each in groups)
        self.entries: dict[EntryFamily, Tensor] = {
            family: torch.full((family[0].group.lanes, tokens), NO_ENTRY, device=device)
            for family in families
        }
        self._ratios = sorted({ratio for _, ratio, _ in families})
        sizes = {"request_slots": most_requests, "token_slots": tokens, "positions": tokens}
        sizes |= {"tokens_after": most_requests}
        sizes |= {_lengths(ratio): most_requests for ratio in self._ratios}
        ends = np.cumsum(list(sizes.values()))
        starts = ends - list(sizes.values())
        self._starts = dict(zip(sizes, starts.tolist(), strict=True))
        self._blank = np.zeros(int(ends[-1]), dtype=np.int64)
        self._blank[: most_requests + tokens] = NO_SLOT
        self._numbers = torch.from_numpy(self._blank.copy()).to(device)

    def clear(self) -> None:
        """No request at all."""
        self._copy(self._blank)

    def fill(self, batch: StepBatch) -> None:
        """Take over a step's numbers."""
        numbers, starts = self._blank.copy(), self._starts
        requests, tokens = batch.num_requests, batch.num_tokens
        for name, count, values in (
            ("request_slots", requests, batch.request_slots),
            ("token_slots", tokens, batch.token_slots),
            ("positions", tokens, batch.positions),
            ("tokens_after", requests, batch.tokens_after),
        ):
            numbers[starts[name] : starts[name] + count] = values.numpy()
        after = batch.tokens_after.numpy()
        for ratio in self._ratios:
            start = starts[_lengths(ratio)]
            np.floor_divide(after, ratio, out=numbers[start : start + requests])
        self._copy(numbers)

    def view(self, requests: int) -> "StaticView":
        """The numbers of the first ``requests`` requests; see ``StepView``."""
        return StaticView(self, requests)

    def take(self, name: str, count: int) -> Tensor:
        """The first ``count`` numbers of a kind."""
        start = self._starts[name]
        return self._numbers[start : start + count]

    def _copy(self, numbers: NDArray[np.int64]) -> None:
        staged = torch.from_numpy(numbers)
        if self._numbers.is_cuda:
            staged = staged.pin_memory()  # a fresh one: the last may still be on its way
        self._numbers.copy_(staged, non_blocking=True)


class StaticView:
    """The first requests of a ``StaticStep``, as operations read them; see ``StepView``."""

    def __init__(self, step: StaticStep, requests: int) -> None:
        tokens = requests * step.tokens_each
        self.num_requests = requests
        self.max_request_tokens = step.tokens_each
        self.request_slots = step.take("request_slots", requests)
        self.tokens_after = step.take("tokens_after", requests)
        self.token_slots = step.take("token_slots", tokens)
        self.positions = step.take("positions", tokens)
        self._step = step

    def check_current(self) -> None:
        """See ``StepView``; the step that fills the numbers is checked instead."""

    def chunk_start(self) -> tuple[int, int]:
        """See ``StepView``; a chunk's length is the host's, so it is never captured."""
        raise NotImplementedError("prompt chunks are not captured")

    def lengths(self, ratio: int) -> Tensor:
        """See ``StepView``."""
        return self._step.take(_lengths(ratio), self.num_requests)

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """See ``StepView``: one for every token, −1 where it completes none."""
        entries = self.token_entries(table, lane, ratio, per_block)
        return Completed(self.token_slots, self.positions, entries)

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """See ``StepView``."""
        return self._step.entries[table, ratio, per_block][lane][: len(self.token_slots)]


def _lengths(ratio: int) -> str:
    return f"lengths of ratio {ratio}"
