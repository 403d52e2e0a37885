"""Findings made up, for what judges and shows them."""

from dsv4kv.ops.cuda.inspection import Example, Finding, KernelReport
from dsv4kv.ops.launches import KernelModule, Launch

GOOD = {"LDG.64": 2, "LDG.128": 1, "STG.128": 1}


def finding(
    name: str = "page_copy fp8 × 32",
    architecture: str = "sm_90a",
    *,
    registers: int = 16,
    local_bytes: int = 0,
    accesses: dict[str, int] | None = None,
    early: int | None = 0,
    products: dict[str, int] | None = None,
) -> Finding:
    """A kernel with one number of each kind; ``name`` is kernel and subject."""
    kernel, _, subject = name.partition(" ")
    module = KernelModule(f"{kernel}.cuh", (("DSV_PAGE_BYTES", 1152),))
    report = KernelReport(
        kernel, registers, local_bytes, 0, 75, (8, 4), accesses or GOOD, early,
        products or {},
    )  # fmt: skip
    return Finding(Example(subject, Launch(module, kernel, (1, 1), 256, ())), architecture, report)
