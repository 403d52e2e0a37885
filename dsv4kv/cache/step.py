"""The tokens of one step: built once, used by every layer."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dsv4kv.cache.device_tables import stage
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.table import BlockTable
from dsv4kv.errors import CacheError, NotOwner

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

    def seen(self, ratio: int) -> Tensor:
        """Entries that each token sees, int64[T]; of ratio 1 the tokens so far, it included."""

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """Entries of ``ratio`` that the step completes; an entry of −1 is none."""

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """The entry of ``ratio`` that each token completes, int64[T]; −1 where none."""


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
        self._seen: dict[int, Tensor] = {}

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

    def seen(self, ratio: int) -> Tensor:
        """Entries that each token sees, int64[T]: floor(tokens so far / ratio)."""
        if ratio not in self._seen:
            self._seen[ratio] = torch.from_numpy((self._positions + 1) // ratio)
        return self._seen[ratio]

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


class StagedStep:
    """A step's numbers on a device, each copied when first asked for; see ``StepView``."""

    def __init__(self, batch: StepBatch, device: torch.device) -> None:
        """Stand for ``batch`` on ``device``."""
        self._batch = batch
        self._device = device
        self._staged: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def request_slots(self) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.request_slots)

    @property
    def token_slots(self) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.token_slots)

    @property
    def positions(self) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.positions)

    @property
    def tokens_after(self) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.tokens_after)

    @property
    def num_requests(self) -> int:
        """See ``StepView``."""
        return self._batch.num_requests

    @property
    def max_request_tokens(self) -> int:
        """See ``StepView``."""
        return self._batch.max_request_tokens

    def check_current(self) -> None:
        """See ``StepView``."""
        self._batch.check_current()

    def chunk_start(self) -> tuple[int, int]:
        """See ``StepView``."""
        return self._batch.chunk_start()

    def lengths(self, ratio: int) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.lengths(ratio))

    def seen(self, ratio: int) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.seen(ratio))

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """See ``StepView``."""
        done = self._batch.completed(table, lane, ratio, per_block)
        return Completed(*map(self._stage, (done.slots, done.positions, done.entries)))

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """See ``StepView``."""
        return self._stage(self._batch.token_entries(table, lane, ratio, per_block))

    def _stage(self, numbers: Tensor) -> Tensor:
        """The tensor's copy; the batch keeps handing out the same tensors."""
        found = self._staged.get(id(numbers))
        if found is None:  # with the original, so that its id stays its own
            found = self._staged[id(numbers)] = (numbers, stage(numbers, self._device))
        return found[1]


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
        sizes |= {_seen(ratio): tokens for ratio in {1, *self._ratios}}
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
        for ratio in {1, *self._ratios}:
            start = starts[_seen(ratio)]
            numbers[start : start + tokens] = batch.seen(ratio).numpy()
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

    def seen(self, ratio: int) -> Tensor:
        """See ``StepView``."""
        return self._step.take(_seen(ratio), len(self.token_slots))

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """See ``StepView``: one for every token, −1 where it completes none."""
        entries = self.token_entries(table, lane, ratio, per_block)
        return Completed(self.token_slots, self.positions, entries)

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """See ``StepView``."""
        return self._step.entries[table, ratio, per_block][lane][: len(self.token_slots)]


def _lengths(ratio: int) -> str:
    return f"lengths of ratio {ratio}"


def _seen(ratio: int) -> str:
    return f"entries of ratio {ratio} that tokens see"
