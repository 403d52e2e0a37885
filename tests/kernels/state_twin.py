"""The state kernels on the CPU twin, as a backend: with streams of requests or one call at a time.

HCA entries are split as the plans suggest, so that both stages of a flush take part.
"""

import torch
from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.state import (
    plan_compress_chunk,
    plan_flush,
    plan_state_append,
    split_of,
)
from dsv4kv.ops.storage import PageStore
from tests.kernels.shim.twin import run


def run_all(launches: tuple[Launch, ...], *, reverse: bool = False) -> None:
    for launch in launches:
        run(launch, reverse=reverse)


def dirty_scratch(compressor: Compressor, entries: int) -> Tensor:
    """Room for pooled channels that nobody has cleared."""
    return torch.full((entries, compressor.dim), torch.nan)


def state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> None:
    run(plan_state_append(compressor, state, kv, score, slots, positions))


def flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
) -> None:
    run_all(
        plan_flush(
            compressor,
            state,
            slots,
            positions,
            store,
            entries,
            split=split_of(compressor),
            scratch=dirty_scratch(compressor, len(entries)),
        )
    )


def compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slot: int,
    start: int,
    store: PageStore,
    entries: Tensor,
) -> None:
    run_all(
        plan_compress_chunk(
            compressor,
            state,
            kv,
            score,
            torch.tensor([slot, start, len(kv)]),
            store,
            entries,
            split=split_of(compressor),
            scratch=dirty_scratch(compressor, len(entries)),
        )
    )
