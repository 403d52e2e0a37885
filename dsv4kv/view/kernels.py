"""What kernels were compiled to, as ``dsv4kv kernels`` shows it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.view.table import ABSENT, Table, Text, names, numbers, prose

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.survey import Finding  # which needs torch


def registers_table(findings: Sequence["Finding"]) -> Table:
    """A row for each kernel, a column for each architecture."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for finding in findings:
        report = finding.report
        mark = "!" if report.local_bytes else ""
        row = rows.setdefault((finding.kernel, finding.example.subject), {})
        row[finding.architecture] = f"{report.registers} / {report.instructions}{mark}"
    architectures = list(dict.fromkeys(finding.architecture for finding in findings))
    return Table(
        "Kernels",
        [*names("kernel", "works on"), *numbers(*architectures)],
        [(*key, *(row.get(name, ABSENT) for name in architectures)) for key, row in rows.items()],
        note="registers a thread / instructions; ! uses local memory",
        keys=2,
    )


def machine_code_table(findings: Sequence["Finding"]) -> Table:
    """A row for each kernel of one architecture."""
    return Table(
        f"Kernels on {findings[0].architecture}",
        [
            *names("kernel", "works on"),
            *numbers("regs", "instr.", "shared", "local"),
            *prose("loads"),
            *numbers("under way"),
            *prose("stores"),
        ],
        [
            (
                *(finding.kernel, finding.example.subject),
                *(f"{finding.report.registers}", f"{finding.report.instructions}"),
                *(f"{finding.report.shared_bytes} B", f"{finding.report.local_bytes} B"),
                _widths("LDG", finding.report.accesses),
                str(finding.report.under_way),
                _widths("STG", finding.report.accesses),
            )
            for finding in findings
        ],
        note=(
            "loads and stores: how many × bits of a thread; under way: wide loads before the "
            "first wait"
        ),
        keys=2,
    )


def sum_up(findings: Sequence["Finding"]) -> Text:
    """How many kernels there are, the most registers, and how many use local memory."""
    kernels = {(finding.kernel, finding.example.subject) for finding in findings}
    spilled = {
        (finding.kernel, finding.example.subject)
        for finding in findings
        if finding.report.local_bytes
    }
    most = max((finding.report.registers for finding in findings), default=0)
    architectures = ", ".join(dict.fromkeys(finding.architecture for finding in findings))
    local = f"{len(spilled)} of them with" if spilled else "none with"
    return Text(
        f"{len(kernels)} kernels on {architectures}: at most {most} registers a thread, {local} "
        "local memory.",
        "strong",
    )


def _widths(kind: str, accesses: dict[str, int]) -> str:
    """``4×32 10×64`` of the accesses to global memory."""
    pairs = ((name.partition("."), count) for name, count in accesses.items())
    found = [(int(bits), count) for (prefix, _, bits), count in pairs if prefix == kind]
    return " ".join(f"{count}×{bits}" for bits, count in sorted(found))
