"""``dsv4kv kernels``: what the CUDA sources compile to, on a machine without a GPU too."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.survey import Baseline, Finding

EPILOG = """\
[bold]Examples[/bold]

dsv4kv kernels                 registers, instructions

dsv4kv kernels --arch sm_90a   and widths of accesses

dsv4kv kernels --check         fail on any change
"""


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
    baseline: Annotated[
        Path | None,
        typer.Option(help="The baseline's file (what is shipped for this version of NVRTC)."),
    ] = None,
) -> None:
    """Compile every kernel that the shipped models need, and show what became of it."""
    from dsv4kv.errors import ConfigError
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.cuda.survey import shipped_baseline
    from dsv4kv.ops.kernels.catalogue import ARCHITECTURES

    if write_baseline and arch:
        raise ConfigError("a baseline holds every architecture: leave out --arch.")
    path = baseline or shipped_baseline(nvrtc_version())
    before = _load(path) if check else None
    findings = _survey(list(dict.fromkeys(arch or ARCHITECTURES)))
    if as_json:
        print_document(_as_json(findings))
    elif not check:
        from dsv4kv.view.kernels import machine_code_table, registers_table, sum_up
        from dsv4kv.view.render import show

        one = arch and len(arch) == 1
        table = machine_code_table(findings) if one else registers_table(findings)
        show([table, "", sum_up(findings)])
    if write_baseline:
        _write(findings, path)
    if before is not None:
        _check(findings, before, path, quiet=as_json)


def _survey(architectures: list[str]) -> list["Finding"]:
    """Compile and inspect the catalogue, and show how far it is."""
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.ops.cuda.survey import survey
    from dsv4kv.ops.kernels.catalogue import catalogue

    stderr = open_console(stderr=True)
    with Watcher(stderr, "compiling", "architectures", len(architectures)) as watcher:
        return survey(catalogue(), architectures, lambda _: watcher.advance())


def _load(path: Path) -> "Baseline":
    """The baseline to compare machine code with; raises ``ConfigError`` where there is none."""
    from dsv4kv.errors import ConfigError
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.cuda.survey import load_baseline

    found, nvrtc = load_baseline(path), nvrtc_version()
    if found is None:
        raise ConfigError(
            f"no baseline of NVRTC {nvrtc} to compare with: {path} is not there "
            "(--write-baseline makes it)."
        )
    if found.nvrtc != nvrtc:
        raise ConfigError(
            f"{path} is a baseline of NVRTC {found.nvrtc} and this is {nvrtc}: name another with "
            "--baseline, or leave that out for what is shipped."
        )
    return found


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
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.cuda.survey import make_baseline, save_baseline

    save_baseline(make_baseline(findings, nvrtc_version()), path)
    say(f"baseline: {path}", err=True)


def _check(
    findings: Sequence["Finding"], baseline: "Baseline", path: Path, *, quiet: bool
) -> None:
    """Print every problem; exit code 1 if there is one."""
    from dsv4kv.ops.cuda.survey import broken_promises, drift
    from dsv4kv.view.render import show

    problems = [*broken_promises(findings), *drift(findings, baseline)]
    for problem in problems:
        say(f"problem: {problem}", err=True)
    if problems:
        raise typer.Exit(1)
    if not quiet:
        names = {finding.name for finding in findings}
        architectures = dict.fromkeys(finding.architecture for finding in findings)
        where = ", ".join(architectures)
        found = "no local memory, accesses as wide as promised"
        show([f"{len(names)} kernels on {where}: {found}; as in {path}."])
