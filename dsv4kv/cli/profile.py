"""``dsv4kv profile`` and ``kernels``: which kernels take the time, and what they compile to."""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.choices import listed
from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.cli.runs import say_saved
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped_names
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.ops.cuda.inspection import Finding
    from dsv4kv.profile.run import Plan, Tool
    from dsv4kv.runs.schema import RunRecord
    from dsv4kv.runs.store import Saved

_STEP = "step"
_WITH = {
    "nsys": "Profile with Nsight Systems.",
    "ncu": "Profile with Nsight Compute: counts bytes in DRAM.",
    "torch": "Profile with torch.profiler (Kineto).",
}
_CONFIG = (
    "A profile to open (.nsys-rep, .sqlite, .ncu-rep, .json, .json.gz, run record), or what to "
    f"run: a YAML file, {listed(shipped_names('bench'))}."
)
_RANGE = "Range in a profile that is a step; * is a wildcard."
_RULES = (
    "Classes of more kernels: YAML with engine: NAME and rules: {gather: [PATTERN]}; also insert, "
    "compress, indexer and attention."
)
_FULL = "Every kernel, its full name and how it was launched."
_PRINT = "Print the profiler's command line only."
_OUT = "Folder for the run record; of a profile that is opened none is written by default."


@command(
    "profile",
    "dsv4kv profile                                   nsys if it is there, else torch.profiler",
    "dsv4kv profile server.nsys-rep                   what the KV cache costs your server",
    "dsv4kv profile gpu --nsys --print-command        the command line, for another machine",
    "dsv4kv profile gpu --ncu --kernel gather         bytes in DRAM next to those that must move",
)
def profile(
    config: opt.Text = opt.argument(_CONFIG, "FILE|CONFIG"),
    nsys: bool = opt.flag("--nsys", _WITH["nsys"]),
    ncu: bool = opt.flag("--ncu", _WITH["ncu"]),
    torch: bool = opt.flag("--torch", _WITH["torch"], rare=True),
    set_: opt.Texts = opt.SET,
    steps: int | None = opt.rare("Decode steps to profile.", shown="10, with ncu 1", min=1),
    kernel: opt.Text = opt.rare("Kernels that ncu profiles.", "REGEX", shown="all"),
    step: str = opt.rare(_RANGE, "NAME", default=_STEP),
    rules: Path | None = opt.rare(_RULES, "FILE"),
    print_command: bool = opt.flag("--print-command", _PRINT, rare=True),
    verbose: bool = opt.flag("--verbose -v", _FULL),
    out: Path | None = opt.rare(_OUT, callback=opt.to_folder, shown="results"),
    json_: opt.Text = opt.JSON,
    html: Path | None = opt.HTML,
    child: Path | None = opt.rare("", "FILE"),
) -> None:
    """Profile decode steps, or open a profile of nsys, ncu or torch.profiler.

    A step's time goes to kernels, to gaps between them and to the host; kernels of vLLM, SGLang,
    FlashMLA and TensorRT-LLM are known by what they do to the KV cache.
    """
    from dsv4kv.profile.launch import PACKAGES, require_tool
    from dsv4kv.profile.read import load_profile, names_profile, record_of_profile
    from dsv4kv.profile.table import read_rules
    from dsv4kv.runs.store import save_record

    tools: dict[Tool, bool] = {"nsys": nsys, "ncu": ncu, "torch": torch}
    is_shipped = config in shipped_names("bench")
    opened = None
    if config is not None and not is_shipped and names_profile(config):
        opened = Path(config)
    to_open: dict[str, object] = {"--step": step != _STEP, "--rules": rules}
    to_run: dict[str, object] = {
        "--set": set_,
        "--steps": steps,
        "--kernel": kernel,
        "--print-command": print_command,
    }
    chosen = [*tools.values(), opened is not None]
    _refuse_idle(sum(chosen) > 1, to_run if opened else to_open)
    argv, given = ["dsv4kv", *sys.argv[1:]], _Output(out, json_, html, verbose)
    if opened is not None:
        source = load_profile(opened, step, read_rules(rules) if rules else [])
        record = source.record or record_of_profile(source.profile, opened, step, argv)
        given.show(record, opened)
        given.write(record, save_record(record, out) if out and not source.record else None)
        return
    wanted: Tool | None = next((name for name, chosen in tools.items() if chosen), None)
    if wanted in PACKAGES and not (print_command or child):
        require_tool(wanted)  # before torch is imported, which takes seconds
    from dsv4kv.config.load import load_config
    from dsv4kv.profile.run import Plan, be_profiled, choose_tool, name_folder

    if kernel is not None and wanted != "ncu":
        raise ConfigError("--kernel chooses kernels for ncu: add --ncu.")
    loaded = load_config(config, set_ or [])
    tool, why = choose_tool("nsys" if child else wanted, loaded.config.device)
    folder = child.parent if child else name_folder(loaded, out or opt.RESULTS)
    plan = Plan(loaded, set_ or [], argv, tool, why, steps, folder, kernel)
    if child is not None:
        be_profiled(plan, child)
    elif print_command:
        _print_command(plan)
    else:
        _run(plan, given)


def _refuse_idle(several: bool, given: dict[str, object]) -> None:
    if several:
        raise ConfigError("--nsys, --ncu, --torch and a profile to open: choose one of them.")
    if names := [name for name, value in given.items() if value]:
        raise ConfigError(
            f"{', '.join(names)}: of no use here. A profile is opened with --step and --rules; "
            "what is to be run is given by CONFIG, --set, --steps and --kernel."
        )


def _print_command(plan: "Plan") -> None:
    from dsv4kv.profile.run import make_command

    command = make_command(plan, here=False)
    say(shlex.join(command.words))
    say(f"it needs the folder {plan.folder}, and writes a report and run.json", err=True)
    if command.dropped:
        dropped = ", ".join(command.dropped)
        say(f"options omitted, which this {plan.tool} does not know: {dropped}", err=True)


def _run(plan: "Plan", given: "_Output") -> None:
    from dsv4kv.profile.launch import name_files
    from dsv4kv.profile.run import run_profile
    from dsv4kv.runs.store import save_record

    try:
        record = run_profile(plan)
    except KeyboardInterrupt:
        if plan.folder.is_dir():
            say(f"stopped. {name_files(plan.folder)}", err=True)
        raise
    saved = save_record(record, given.out or opt.RESULTS)
    given.show(record, saved.path)
    if not given.silent:
        say(f"files: {plan.folder}")
    given.write(record, saved)


@dataclass(frozen=True)
class _Output:
    out: Path | None  # folder of records
    json: str | None
    html: Path | None
    verbose: bool

    @property
    def silent(self) -> bool:
        return self.json == "-"

    def show(self, record: "RunRecord", path: Path) -> None:
        from dsv4kv.view.runs import run_page
        from dsv4kv.view.table import Command

        again = Command.of("dsv4kv", "profile", path, "--verbose")
        opt.show_page(run_page(record), again, verbose=self.verbose, quiet=self.silent)

    def write(self, record: "RunRecord", saved: "Saved | None") -> None:
        from dsv4kv.runs.store import dumps
        from dsv4kv.view.runs import run_page

        if saved:
            say_saved(saved, silent=self.silent)
        if self.json:
            opt.write_json(dumps(record), self.json)
        if self.html:
            opt.write_page(run_page(record), self.html)


# ---- kernels

_CHECK = (
    "Fail on register spills, on kernels that do not wait for the one before and on any change "
    "against the baseline."
)
_ARCH = "Architecture, repeatable: sm_80, sm_90a, sm_100a, sm_103a, sm_120."
_WRITE = "Save the current machine code as baseline."


@command(
    "kernels",
    "dsv4kv kernels                 registers, instructions, local memory",
    "dsv4kv kernels --arch sm_90a   of one architecture",
    "dsv4kv kernels --check         fail on any change",
)
def kernels(
    arch: opt.Texts = opt.option(_ARCH, "SM", shown="all"),
    as_json: bool = opt.AS_JSON,
    check: bool = opt.flag("--check", _CHECK),
    write_baseline: bool = opt.flag("--write-baseline", _WRITE),
) -> None:
    """Compile every CUDA kernel: registers, spills, changes of machine code."""
    from dsv4kv.ops.cuda import inspection
    from dsv4kv.ops.cuda.compile import nvrtc_version
    from dsv4kv.ops.cuda.inspection import ARCHITECTURES, catalogue
    from dsv4kv.view import checks, render

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
        render.show([checks.registers_table(findings)])
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
            render.show([f"{len(names)} kernels on {where}: {found}; as in {path}."])


def _to_values(finding: "Finding") -> dict[str, Any]:
    module = finding.example.launch.module
    return {
        "subject": finding.example.subject,
        "architecture": finding.architecture,
        "source": module.source,
        "macros": dict(module.macros),
        **asdict(finding.report),
    }
