"""``dsv4kv kernels``: what the CUDA sources compile to, on a machine without a GPU too."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.inspection import Finding

EPILOG = examples(
    "dsv4kv kernels                 registers, instructions, local memory",
    "dsv4kv kernels --arch sm_90a   of one architecture",
    "dsv4kv kernels --check         fail on any change",
)
_CHECK = (
    "Fail on register spills, on kernels that do not wait for the one before and on any change "
    "against the baseline."
)
_ARCH = "Architecture, repeatable: sm_80, sm_90a, sm_100a, sm_103a, sm_120."
_WRITE = "Save the current machine code as baseline."


def kernels(
    arch: opt.Texts = opt.option(_ARCH, "SM", show_default="all"),
    as_json: bool = opt.AS_JSON,
    check: bool = opt.flag("--check", _CHECK),
    write_baseline: bool = opt.flag("--write-baseline", _WRITE),
) -> None:
    """Compile every CUDA kernel: registers, spills, changes of machine code."""
    from dsv4kv.ops.cuda import inspection
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.cuda.inspection import ARCHITECTURES, catalogue
    from dsv4kv.view.kernels import registers_table, sum_up
    from dsv4kv.view.render import show

    if write_baseline and arch:
        raise ConfigError("a baseline holds every architecture: leave out --arch.")
    nvrtc = nvrtc_version()
    before = inspection.load_baseline(nvrtc) if check else None
    architectures = list(dict.fromkeys(arch or ARCHITECTURES))
    shown = catalogue()
    total = sum(len(inspection.modules_of(shown, each)) for each in architectures)
    with opt.watch("compiling", "modules", total) as watcher:
        findings = inspection.survey(shown, architectures, watcher.advance)
    if as_json:
        opt.print_json({"nvrtc": nvrtc, "kernels": [_to_values(finding) for finding in findings]})
    elif not check:
        show([registers_table(findings), "", sum_up(findings)])
    if write_baseline:
        say(f"baseline: {inspection.save_baseline(findings, nvrtc)}", err=True)
    if before is not None:
        problems = [*inspection.broken_promises(findings), *inspection.drift(findings, before)]
        for problem in problems:
            say(f"problem: {problem}", err=True)
        if problems:
            raise typer.Exit(1)
        if not as_json:
            names = {finding.name for finding in findings}
            where = ", ".join(architectures)
            found = "no local memory, each waits for the one before"
            path = inspection.baseline_path(nvrtc)
            show([f"{len(names)} kernels on {where}: {found}; as in {path}."])


def _to_values(finding: "Finding") -> dict[str, Any]:
    module = finding.example.launch.module
    return {
        "subject": finding.example.subject,
        "architecture": finding.architecture,
        "source": module.source,
        "macros": dict(module.macros),
        **asdict(finding.report),
    }
