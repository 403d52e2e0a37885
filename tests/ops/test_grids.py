"""Grids follow the GPU at hand: its multiprocessors, and the shared memory of each."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from dsv4kv.ops.launches.launch import most_blocks, resident_blocks

NARROW, SCORES = 87 << 10, 86 << 10  # shared memory of a block


@pytest.mark.parametrize(
    ("multiprocessors", "kib", "each"), [(108, 164, 1), (132, 228, 2), (148, 228, 2), (84, 100, 1)]
)
def test_a_multiprocessor_holds_as_many_blocks_as_its_shared_memory(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, kib: int, each: int
) -> None:
    """A100, H200, B200, RTX 3090 (CUDA C++ Programming Guide, table of compute capabilities)."""
    facts = SimpleNamespace(
        multi_processor_count=multiprocessors, shared_memory_per_multiprocessor=kib << 10
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    there: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    tensor = cast(Tensor, there)
    assert resident_blocks(tensor, NARROW, 2) == each * multiprocessors
    assert resident_blocks(tensor, SCORES, 2) == each * multiprocessors
    assert resident_blocks(tensor, 179 << 10, 1) == multiprocessors
    assert most_blocks(tensor) == 8 * multiprocessors
