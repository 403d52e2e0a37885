"""Runs a kernel that is wrong on purpose."""

from pathlib import Path

import torch
from torch import Tensor

from dsv4kv.ops.kernels.launch import KernelModule, Launch
from tests.kernels.shim.twin import SANITIZED, run

THREADS = 64
_SOURCE = Path(__file__).with_name("shim") / "bad" / "defects.cuh"


def defect(kernel: str, source: Tensor, target: Tensor, *, barrier: bool = False) -> Launch:
    """One block of ``kernel``, which has some 16 bytes a thread on either side."""
    module = KernelModule(str(_SOURCE), (("DSV_BARRIER", int(barrier)),))
    return Launch(module, kernel, (1, 1), THREADS, (source, target))


def run_defect(kernel: str, *, sanitized: bool) -> None:
    """Run a defect on 1024 bytes of 77, aligned to 64 bytes."""
    source, target = (torch.full((16 * THREADS,), 77, dtype=torch.uint8) for _ in range(2))
    run(defect(kernel, source, target), flags=SANITIZED if sanitized else ())
