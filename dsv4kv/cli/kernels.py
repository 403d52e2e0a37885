"""``dsv4kv kernels``: what the CUDA sources compile to, on a machine without a GPU too."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.cli.console import open_console, print_document, say

if TYPE_CHECKING:
    from rich.table import Table

    from dsv4kv.ops.cuda.survey import Finding

_BASELINE = Path("results/sass/baseline.json")


def kernels(
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SM", help="Architecture, repeatable: sm_80, sm_90a, sm_100a, sm_120 (all)."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of a table.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Fail on local memory, on accesses narrower than promised and on any change "
            "against the baseline.",
        ),
    ] = False,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Take the machine code of now as baseline.")
    ] = False,
    baseline: Annotated[Path, typer.Option(help="The baseline's file.")] = _BASELINE,
) -> None:
    """Compile every kernel that the shipped models need, and show what became of it."""
    from dsv4kv.errors import ConfigError
    from dsv4kv.ops.cuda.survey import survey
    from dsv4kv.ops.kernels.catalogue import ARCHITECTURES, catalogue

    if write_baseline and arch:
        raise ConfigError("a baseline holds every architecture: leave out --arch.")
    findings = survey(catalogue(), list(dict.fromkeys(arch or ARCHITECTURES)))
    if as_json:
        print_document(_as_json(findings))
    elif not check:
        table = _details(findings) if arch and len(arch) == 1 else _matrix(findings)
        open_console().print(table)
    if write_baseline:
        _write(findings, baseline)
    if check:
        _check(findings, baseline, quiet=as_json)


def _matrix(findings: Sequence["Finding"]) -> "Table":
    """A row for each kernel, a column for each architecture."""
    from rich.table import Table

    table = Table(title="Registers a thread / instructions; ! uses local memory")
    table.add_column("kernel", no_wrap=True)
    table.add_column("works on")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for finding in findings:
        report, row = (
            finding.report,
            rows.setdefault((finding.kernel, finding.example.subject), {}),
        )
        mark = "!" if report.local_bytes else ""
        row[finding.architecture] = f"{report.registers} / {report.instructions}{mark}"
    for architecture in dict.fromkeys(finding.architecture for finding in findings):
        table.add_column(architecture, justify="right", no_wrap=True)
    for names, row in rows.items():
        table.add_row(*names, *row.values())
    return table


def _details(findings: Sequence["Finding"]) -> "Table":
    """A row for each kernel of one architecture."""
    from rich.table import Table

    table = Table(
        title=f"{findings[0].architecture}; loads and stores: how many × bits of a thread; "
        "under way: wide loads before the first wait"
    )
    table.add_column("kernel", no_wrap=True)
    table.add_column("works on")
    for name in ("regs", "instr.", "shared", "local"):
        table.add_column(name, justify="right")
    table.add_column("loads")
    table.add_column("under way", justify="right")
    table.add_column("stores")
    for finding in findings:
        report = finding.report
        table.add_row(
            finding.kernel,
            finding.example.subject,
            str(report.registers),
            str(report.instructions),
            f"{report.shared_bytes} B",
            f"{report.local_bytes} B",
            _widths("LDG", report.accesses),
            str(report.under_way),
            _widths("STG", report.accesses),
        )
    return table


def _widths(kind: str, accesses: dict[str, int]) -> str:
    """``4×32 10×64`` of the accesses to global memory."""
    pairs = ((name.partition("."), count) for name, count in accesses.items())
    found = [(int(bits), count) for (prefix, _, bits), count in pairs if prefix == kind]
    return " ".join(f"{count}×{bits}" for bits, count in sorted(found))


def _as_json(findings: Sequence["Finding"]) -> str:
    import json
    from dataclasses import asdict

    from dsv4kv.ops.cuda.compile import nvrtc_version

    def describe(finding: "Finding") -> dict[str, Any]:
        module = finding.example.launch.module
        return {
            "subject": finding.example.subject,
            "architecture": finding.architecture,
            "source": module.source,
            "macros": dict(module.macros),
            **asdict(finding.report),
        }

    document = {"nvrtc": nvrtc_version(), "kernels": [describe(finding) for finding in findings]}
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _write(findings: Sequence["Finding"], path: Path) -> None:
    from dsv4kv.ops.cuda.baseline import make_baseline, save_baseline
    from dsv4kv.ops.cuda.compile import nvrtc_version

    save_baseline(make_baseline(findings, nvrtc_version()), path)
    say(f"baseline: {path}", err=True)


def _check(findings: Sequence["Finding"], path: Path, *, quiet: bool) -> None:
    """Tell every problem; exit code 1 if there is one."""
    from dsv4kv.ops.cuda.promises import broken_promises

    drifted, compared = _drift(findings, path)
    problems = [*broken_promises(findings), *drifted]
    for problem in problems:
        say(f"problem: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
    if not quiet:
        names = {finding.name for finding in findings}
        architectures = dict.fromkeys(finding.architecture for finding in findings)
        say(f"{len(names)} kernels on {', '.join(architectures)}: no local memory, "
                   f"accesses as wide as promised; {compared}.")  # fmt: skip


def _drift(findings: Sequence["Finding"], path: Path) -> tuple[list[str], str]:
    """Changes against the baseline, and a clause that says what was compared."""
    from dsv4kv.ops.cuda.baseline import drift, load_baseline
    from dsv4kv.ops.cuda.compile import nvrtc_version

    baseline, nvrtc = load_baseline(path), nvrtc_version()
    if baseline is None:
        return [], f"no baseline {path} to compare with (--write-baseline makes one)"
    if baseline.nvrtc != nvrtc:
        return (
            [],
            f"not compared with {path}, which NVRTC {baseline.nvrtc} made and this is {nvrtc}",
        )
    return list(drift(findings, baseline)), f"as in {path}"
