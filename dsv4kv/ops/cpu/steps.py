"""A decode step's writes to one layer, one after the other."""

from torch import Tensor

from dsv4kv.ops.cpu.compression import flush, state_append
from dsv4kv.ops.cpu.entries import window_insert
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.writes import Parts


def step_write(
    ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor, parts: Parts
) -> None:
    """See ``contract.Backend.step_write``."""
    window_insert(ring, values, slots, positions)
    for part in parts:
        state_append(part.compressor, part.state, part.kv, part.score, slots, positions)
        done = (part.entries >= 0).nonzero().squeeze(1)
        if len(done):
            group = slots[done], positions[done]
            flush(part.compressor, part.state, *group, part.store, part.entries[done])
