"""The backend on NVIDIA GPUs: every operation is its launch plan, launched.

``plan_NAME`` of ``ops.kernels`` is what ``contract.Backend.NAME`` launches here, with the same
arguments. Nothing here waits for the GPU, and importing it needs none. A loop that has to be fast,
or is captured in a graph, plans once and calls what ``launch.prepare`` returns. An operation that
can be done in several ways takes one of them as ``variant``, or the best of its GPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Parts, write_in_turn
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.kernels import attend as attention
from dsv4kv.ops.kernels import gather, insert, scores, topk
from dsv4kv.ops.kernels import state as states
from dsv4kv.ops.kernels.launch import Launch
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import OPERATIONS
from dsv4kv.ops.variants import VARIANTS, best, portable

_PLANS = (insert, states, gather, scores, topk, attention)


def __getattr__(name: str) -> Callable[..., None]:
    """Operations that are nothing but their plan, launched."""
    if name in OPERATIONS:
        return _launching(name)
    raise AttributeError(name)


@functools.cache
def _launching(operation: str) -> Callable[..., None]:
    """See ``contract.Backend``; tokens of a slot are adjacent, in order."""
    (plan,) = (p for each in _PLANS if (p := getattr(each, f"plan_{operation}", None)))

    @functools.wraps(plan)
    def launch(*arguments: Any, variant: str | None = None) -> None:
        how: dict[str, str] = {}
        if operation in VARIANTS:
            device = next(each for each in arguments if isinstance(each, Tensor))
            how["variant"] = variant or _best(operation, device)
        planned = plan(*arguments, **how)
        for each in (planned,) if isinstance(planned, Launch) else planned:
            run(each)

    return launch


def step_write(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.step_write``."""
    tokens = ring, values, slots, positions, parts
    if (variant or _best("step_write", slots)) == "separate":
        insertion, append, flush = map(_launching, ("window_insert", "state_append", "flush"))
        write_in_turn(insertion, append, flush, *tokens)
        return
    scratch = torch.empty(len(slots), parts[0].compressor.dim, device=slots.device)
    room = 1 << (len(slots) - 1).bit_length()
    arrivals = _arrivals(slots.device, room)
    run(states.plan_step_write(*tokens, scratch=scratch, arrivals=arrivals))


def compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slot: int,
    start: int,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.compress_chunk``."""
    numbers = torch.tensor([slot, start, len(kv)], pin_memory=kv.is_cuda)  # or the copy waits
    chunk = numbers.to(kv.device, non_blocking=True)
    variant = variant or _best("compress_chunk", entries)
    tokens = kv, score, chunk, store, entries
    for launch in states.plan_compress_chunk(compressor, state, *tokens, variant=variant):
        run(launch)


def _best(operation: str, tensor: Tensor) -> str:
    """The variant to use where nobody says; off a GPU, what every GPU has."""
    if not tensor.is_cuda:
        return portable(operation)
    return best(operation, architecture_of(*torch.cuda.get_device_capability(tensor.device)))


@functools.cache
def _arrivals(device: torch.device, tokens: int) -> Tensor:
    """Zeros, one set of them for each size: every launch leaves them as it found them."""
    return torch.zeros(tokens, dtype=torch.int32, device=device)
