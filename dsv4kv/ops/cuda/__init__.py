"""The backend on NVIDIA GPUs: every operation is its launch plan, launched.

``plan_NAME`` of ``ops.launches`` is what the operation NAME launches here, with the same
arguments. Nothing here waits for the GPU, and importing it needs none. A loop that has to be fast,
or is captured in a graph, plans once and calls what ``launch.prepare`` returns. An operation that
can be done in several ways takes one of them as ``variant``, or the best of its GPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches import Launch, pages, reads
from dsv4kv.ops.spec import OPERATIONS, VARIANTS, available, write_in_turn


def __getattr__(name: str) -> Callable[..., None]:
    """An operation, called by keyword."""
    if name in OPERATIONS:
        return _launching(name)
    raise AttributeError(name)


@functools.cache
def _launching(operation: str) -> Callable[..., None]:
    special: dict[str, Any] = {"step_write": _step_write, "compress_chunk": _compress_chunk}
    plans = (getattr(each, f"plan_{operation}", None) for each in (pages, reads))
    plan = special.get(operation) or next(filter(None, plans))

    def launch(*, variant: str | None = None, **arguments: Any) -> None:
        how: dict[str, str] = {}
        if operation in VARIANTS:
            device = next(each for each in arguments.values() if isinstance(each, Tensor)).device
            how["variant"] = variant or _best(operation, device)
        planned = plan(**arguments, **how)
        for each in (planned,) if isinstance(planned, Launch) else planned:
            run(each)

    launch.__name__ = operation
    return launch


def _step_write(*, variant: str, **step: Any) -> tuple[Launch, ...]:
    if variant == "separate":
        pieces = map(_launching, ("window_insert", "state_append", "flush"))
        write_in_turn(*pieces, **step)
        return ()
    slots = step["slots"]
    scratch = torch.empty(len(slots), step["parts"][0].compressor.dim, device=slots.device)
    arrivals = _arrivals(slots.device, 1 << (len(slots) - 1).bit_length())
    return (pages.plan_step_write(**step, scratch=scratch, arrivals=arrivals),)


@functools.cache
def _arrivals(device: torch.device, tokens: int) -> Tensor:
    """Zeros, one set of them for each size: every launch leaves them as it found them."""
    return torch.zeros(tokens, dtype=torch.int32, device=device)


def _compress_chunk(*, slot: int, start: int, **chunk: Any) -> tuple[Launch, ...]:
    kv = chunk["kv"]
    numbers = torch.tensor([slot, start, len(kv)], pin_memory=kv.is_cuda)  # or the copy waits
    on_device = numbers.to(kv.device, non_blocking=True)
    return pages.plan_compress_chunk(**chunk, chunk=on_device)


def _best(operation: str, device: torch.device) -> str:
    """The first variant that the GPU has; on the CPU one that every GPU has."""
    on_gpu = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_gpu else None
    return available(operation, architecture_of(*capability) if capability else None)[0]
