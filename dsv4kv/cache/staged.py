"""A step's numbers on a device, copied there."""

import torch
from torch import Tensor

from dsv4kv.cache.staging import stage
from dsv4kv.cache.step import StepBatch
from dsv4kv.cache.table import BlockTable
from dsv4kv.cache.view import Completed


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
