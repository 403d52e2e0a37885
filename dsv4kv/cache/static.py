"""A step's numbers in memory that never moves: what a captured graph reads."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.step import StepBatch
from dsv4kv.cache.table import BlockTable
from dsv4kv.cache.view import Completed, EntryGroup


class StaticStep:
    """Room for the numbers of ``most_requests`` requests of ``tokens_each`` tokens.

    ``fill`` takes a step's numbers over in one transfer. What is left over is −1, no request and
    no token, and operations do nothing for it.
    """

    def __init__(
        self,
        groups: Sequence[EntryGroup],
        most_requests: int,
        tokens_each: int,
        device: torch.device,
    ) -> None:
        """Lay out the numbers; ``groups`` are what layers ask ``completed`` for."""
        self.groups = tuple(dict.fromkeys(groups))
        self.tokens_each = tokens_each
        self._ratios = sorted({ratio for _, _, ratio, _ in self.groups})
        tokens = most_requests * tokens_each
        sizes = {"request_slots": most_requests, "tokens_after": most_requests}
        sizes |= {_lengths(ratio): most_requests for ratio in self._ratios}
        sizes |= {"token_slots": tokens, "positions": tokens}
        sizes |= {_entries(group): tokens for group in self.groups}
        ends = np.cumsum(list(sizes.values()))
        starts = ends - list(sizes.values())
        self._starts = dict(zip(sizes, starts.tolist(), strict=True))
        self._blank = np.zeros(int(ends[-1]), dtype=np.int64)
        for name in ("request_slots", "token_slots", *map(_entries, self.groups)):
            self._blank[self._starts[name] : self._starts[name] + sizes[name]] = -1
        self._numbers = torch.from_numpy(self._blank.copy()).to(device)

    def clear(self) -> None:
        """No request at all."""
        self._copy(self._blank)

    def fill(self, batch: StepBatch) -> None:
        """Take over a step's numbers."""
        numbers = self._blank.copy()
        found = {
            "request_slots": batch.request_slots,
            "tokens_after": batch.tokens_after,
            "token_slots": batch.token_slots,
            "positions": batch.positions,
        }
        found |= {_lengths(ratio): batch.lengths(ratio) for ratio in self._ratios}
        for name, values in found.items():
            numbers[self._starts[name] : self._starts[name] + len(values)] = values.numpy()
        for group in self.groups:
            start, (_, _, ratio, _) = self._starts[_entries(group)], group
            ends_entry = np.flatnonzero((batch.positions.numpy() + 1) % ratio == 0)
            numbers[start + ends_entry] = batch.completed(*group).entries.numpy()
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
        name = _entries((table, lane, ratio, per_block))
        entries = self._step.take(name, len(self.token_slots))
        return Completed(self.token_slots, self.positions, entries)


def _lengths(ratio: int) -> str:
    return f"lengths of ratio {ratio}"


def _entries(group: EntryGroup) -> str:
    table, lane, ratio, _ = group
    return f"entries of ratio {ratio} in {table.group.name}, lane {lane}"
