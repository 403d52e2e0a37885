"""``dsv4kv kernels``: what the CUDA sources compile to, on a machine without a GPU too."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.inspection import Baseline, Finding

EPILOG = examples(
    "dsv4kv kernels                 registers, instructions, widths of accesses",
    "dsv4kv kernels --arch sm_90a   of one architecture",
    "dsv4kv kernels --check         fail on any change",
)
_CHECK = (
    "Fail on register spills, on accesses narrower than promised and on any change against the "
    "baseline."
)
_ARCH = "Architecture, repeatable: sm_80, sm_90a, sm_100a, sm_103a, sm_120."
_WRITE = "Save the current machine code as baseline."
_BASELINE = "The baseline's file."


def kernels(
    arch: opt.Texts = opt.option(_ARCH, "SM", show_default="all"),
    as_json: bool = opt.AS_JSON,
    check: bool = opt.flag("--check", _CHECK),
    write_baseline: bool = opt.flag("--write-baseline", _WRITE, rare=True),
    baseline: Path | None = opt.option(
        _BASELINE, rare=True, show_default="shipped for this NVRTC"
    ),
) -> None:
    """Compile every CUDA kernel: registers, spills, changes of machine code."""
    from dsv4kv.ops.cuda import inspection
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.launches.catalogue import ARCHITECTURES, catalogue
    from dsv4kv.view.kernels import machine_code_table, registers_table, sum_up
    from dsv4kv.view.render import show

    if write_baseline and arch:
        raise ConfigError("a baseline holds every architecture: leave out --arch.")
    nvrtc = nvrtc_version()
    path = baseline or inspection.shipped_baseline(nvrtc)
    before = _load(path, nvrtc) if check else None
    architectures = list(dict.fromkeys(arch or ARCHITECTURES))
    shown = catalogue()
    total = sum(len(inspection.modules_of(shown, each)) for each in architectures)
    with opt.watch("compiling", "modules", total) as watcher:
        findings = inspection.survey(shown, architectures, watcher.advance)
    if as_json:
        opt.print_json({"nvrtc": nvrtc, "kernels": [_to_values(finding) for finding in findings]})
    elif not check:
        one = arch and len(arch) == 1
        table = machine_code_table(findings) if one else registers_table(findings)
        show([table, "", sum_up(findings)])
    if write_baseline:
        inspection.save_baseline(inspection.make_baseline(findings, nvrtc), path)
        say(f"baseline: {path}", err=True)
    if before is not None:
        problems = [*inspection.broken_promises(findings), *inspection.drift(findings, before)]
        for problem in problems:
            say(f"problem: {problem}", err=True)
        if problems:
            raise typer.Exit(1)
        if not as_json:
            names = {finding.name for finding in findings}
            where = ", ".join(architectures)
            found = "no local memory, accesses as wide as promised"
            show([f"{len(names)} kernels on {where}: {found}; as in {path}."])


def _load(path: Path, nvrtc: str) -> "Baseline":
    from dsv4kv.ops.cuda.inspection import load_baseline

    found = load_baseline(path)
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


def _to_values(finding: "Finding") -> dict[str, Any]:
    module = finding.example.launch.module
    return {
        "subject": finding.example.subject,
        "architecture": finding.architecture,
        "source": module.source,
        "macros": dict(module.macros),
        **asdict(finding.report),
    }
