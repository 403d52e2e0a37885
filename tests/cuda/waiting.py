"""What must not wait for the GPU is caught when it does."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PROTOTYPE = "Synchronization debug mode is a prototype feature"
"""How torch's warning begins, which the first change of the mode brings in every process."""


@contextmanager
def forbidding_waits() -> Iterator[None]:
    """Whatever waits for the GPU behind torch's back raises."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROTOTYPE, UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
