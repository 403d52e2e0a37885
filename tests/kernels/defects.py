"""Runs a kernel that is wrong on purpose."""

from pathlib import Path

import torch
from torch import Tensor

from dsv4kv.ops.launches import KernelModule, Launch
from tests.kernels.shim.twin import SANITIZED, run

THREADS = 64
_SOURCE = Path(__file__).with_name("shim") / "bad" / "defects.cuh"


def defect(kernel: str, source: Tensor, target: Tensor, *, barrier: bool = False) -> Launch:
    """One block of ``kernel``, which has some 16 bytes a thread on either side."""
    module = KernelModule(str(_SOURCE), (("DSV_BARRIER", int(barrier)),))
    return Launch(module, kernel, (1, 1), THREADS, (source, target))


def run_exchange(mistake: int) -> None:
    """Run a cluster of two blocks with a mistake; raises where it writes something else."""
    module = KernelModule(str(_SOURCE.with_name("cluster_defects.cuh")), ())
    source, target = torch.arange(64, dtype=torch.uint8), torch.zeros(32, dtype=torch.uint8)
    arguments = (source, target, mistake)
    run(Launch(module, "exchange", (1, 2), THREADS, arguments, cluster=2, shared_bytes=64))
    expected = torch.cat([source[32:48], source[:16]])
    assert torch.equal(target, expected), f"other bytes: {target.tolist()}"


def run_defect(kernel: str, *, sanitized: bool) -> None:
    """Run a defect on 1024 bytes of 77, aligned to 64 bytes."""
    source, target = (torch.full((16 * THREADS,), 77, dtype=torch.uint8) for _ in range(2))
    run(defect(kernel, source, target), flags=SANITIZED if sanitized else ())
