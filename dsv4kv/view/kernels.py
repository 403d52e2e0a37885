"""Compiled kernels, as ``dsv4kv kernels`` shows it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.view.table import ABSENT, Number, Table, Text

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
