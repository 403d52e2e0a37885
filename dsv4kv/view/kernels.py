"""Compiled kernels, as ``dsv4kv kernels`` shows it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.view.quantity import quantity, size
from dsv4kv.view.table import ABSENT, Columns, Number, Table, Text

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.inspection import Finding  # which needs torch


def registers_table(findings: Sequence["Finding"]) -> Table:
    """A row for each kernel, a column for each architecture."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for finding in findings:
        report = finding.report
        row = rows.setdefault((finding.kernel, finding.example.subject), {})
        mark = "!" if report.local_bytes else ""
        row[finding.architecture] = f"{report.registers} / {report.instructions}{mark}"
    architectures = list(dict.fromkeys(finding.architecture for finding in findings))
    return Table(
        "Kernels",
        ["kernel", "works on", *architectures],
        [
            (*key, *(Number(row.get(name, ABSENT)) for name in architectures))
            for key, row in rows.items()
        ],
        note="registers a thread / instructions; ! uses local memory",
        keys=2,
    )


def machine_code_table(findings: Sequence["Finding"]) -> Table:
    """A row for each kernel of one architecture."""
    columns: Columns = [
        ("kernel", lambda each: each.kernel),
        ("works on", lambda each: each.example.subject),
        ("regs", lambda each: quantity(each.report.registers)),
        ("instr.", lambda each: quantity(each.report.instructions)),
        ("shared", lambda each: size(each.report.shared_bytes)),
        ("local", lambda each: size(each.report.local_bytes)),
        ("loads", lambda each: Text(_widths("LDG", each.report.accesses))),
        ("in flight", lambda each: quantity(each.report.under_way)),
        ("stores", lambda each: Text(_widths("STG", each.report.accesses))),
    ]
    note = (
        "loads and stores: number × bits of a thread; in flight: wide loads before the first wait"
    )
    return Table(f"Kernels on {findings[0].architecture}", columns, findings, note=note, keys=2)


def sum_up(findings: Sequence["Finding"]) -> Text:
    """How many kernels there are, the most registers, and how many use local memory."""
    kernels = {(finding.kernel, finding.example.subject) for finding in findings}
    spilled = {(f.kernel, f.example.subject) for f in findings if f.report.local_bytes}
    most = max((finding.report.registers for finding in findings), default=0)
    architectures = ", ".join(dict.fromkeys(finding.architecture for finding in findings))
    local = f"{len(spilled)} of them use" if spilled else "none uses"
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
