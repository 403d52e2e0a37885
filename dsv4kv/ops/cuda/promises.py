"""What every kernel promises of its machine code, on every architecture."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dsv4kv.ops.cuda.survey import Finding


@dataclass(frozen=True)
class Promise:
    """How a kernel accesses global memory; widths are bits of one thread's access.

    Attributes:
        loads: At least one load is this wide: the values. Indices and tables may be narrower.
        stores: No store is narrower than this.
        under_way: So many wide loads are issued before the first of them is waited for.
        copies: There are bulk copies into shared memory.
    """

    loads: int = 0
    stores: int = 0
    under_way: int = 0
    copies: bool = False


PROMISES = {
    "gather_*": Promise(stores=128),
    "gather_topk fp8_ds_mla*": Promise(loads=128, under_way=8),  # its bf16 tail; e4m3 goes 64 bits
    "gather_all fp8_ds_mla*": Promise(loads=128, under_way=8),
    "gather_entries fp8_ds_mla*": Promise(loads=128, under_way=8),
    "gather_* fp8_ds_mla*, ahead": Promise(under_way=16),
    "gather_window fp8_*": Promise(loads=64),
    "entry_insert *": Promise(loads=128),
    "entry_insert fp8_ds_mla*": Promise(stores=64),  # the row of scales is 8 bytes
    "window_insert *": Promise(loads=128),
    "window_insert fp8_ds_mla*": Promise(stores=64),
    "indexer_insert *": Promise(loads=128),
    "state_*": Promise(loads=128, stores=128),
    "flush*": Promise(loads=128),
    "step_write *": Promise(loads=128),
    "chunk_*": Promise(loads=128),
    "*flush csa-4 *, scratch": Promise(under_way=16),  # 8 rows of kv and of score
    "*flush hca-128 *, scratch": Promise(under_way=8),  # 4 rows at a time
    "*flush hca-128 *, cluster": Promise(copies=True),
    "page_copy *": Promise(loads=128, stores=128),
    "copy_peak *": Promise(loads=128, stores=128, under_way=8),
    "read_peak *": Promise(loads=128),
    "write_peak *": Promise(stores=128),
}
"""By patterns of ``Finding.name``; all that fit hold. Local memory is promised by none."""

_COPY = "UBLKCP."

FIRST_DEPENDENT = 90
"""From sm_90 on a kernel may begin before the one in front of it has ended: each waits first."""


def broken_promises(findings: Iterable[Finding]) -> Iterator[str]:
    """A sentence for each promise that machine code does not keep."""
    for finding in findings:
        where, report = f"{finding.name} on {finding.architecture}", finding.report
        spills = [kind for kind in report.accesses if kind.startswith(("LDL.", "STL."))]
        if report.local_bytes or spills:
            yield (
                f"{where} uses {report.local_bytes} B of local memory a thread (spilled registers "
                "or arrays indexed at run time)."
            )
        if _is_hopper_or_newer(finding.architecture) and report.early != 0:
            told = "never waits" if report.early is None else "touches memory before it waits"
            yield f"{where} {told} for the kernel in front of it: begin with begin_kernel()."
        for pattern, promise in PROMISES.items():
            if fnmatchcase(finding.name, pattern):
                yield from _broken_widths(where, promise, report.accesses)
                if report.under_way < promise.under_way:
                    yield (
                        f"{where} waits after {report.under_way} wide loads, not after "
                        f"{promise.under_way}: the compiler moved the others behind the wait."
                    )
                if promise.copies and not any(kind.startswith(_COPY) for kind in report.accesses):
                    yield f"{where} has no bulk copy into shared memory."


def _is_hopper_or_newer(architecture: str) -> bool:
    return int("".join(filter(str.isdigit, architecture))) >= FIRST_DEPENDENT


def _broken_widths(where: str, promise: Promise, accesses: dict[str, int]) -> Iterator[str]:
    loads, stores = _widths("LDG", accesses), _widths("STG", accesses)
    if promise.loads and max(loads, default=0) < promise.loads:
        yield f"{where} has no load of {promise.loads} bits, only {_told(loads)}."
    if promise.stores and min(stores, default=0) < promise.stores:
        yield f"{where} stores {_told(stores)} bits at once, not {promise.stores} throughout."


def _widths(kind: str, accesses: dict[str, int]) -> list[int]:
    pairs = (name.partition(".") for name in accesses)
    return sorted(int(bits) for name, _, bits in pairs if name == kind)


def _told(widths: list[int]) -> str:
    return " and ".join(map(str, widths)) or "none"
