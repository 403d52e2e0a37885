"""``dsv4kv profile``: which kernels take the time, by whichever profiler is there."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dsv4kv.choices import PROFILERS, listed
from dsv4kv.cli import examples
from dsv4kv.cli.options import (
    RESULTS,
    Html,
    JsonFile,
    Out,
    Settings,
    Text,
    argument,
    flag,
    option,
    to_file,
    write_json,
)
from dsv4kv.cli.runs import say_saved
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped_names
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.bench.profile import Plan, Tool
    from dsv4kv.runs.imported import Source
    from dsv4kv.runs.schema import RunRecord
    from dsv4kv.runs.store import Saved

_STEP = "step"
_TIMELINES = ("timeline.svg", "timeline.json")
"""Pictures of one step, next to the profiler's own files."""
_TIMEOUT_S = 600.0

EPILOG = examples(
    "dsv4kv profile                                   nsys if it is there, else torch.profiler",
    "dsv4kv profile gpu --nsys --print-command        the command line, and nothing else",
    "dsv4kv profile gpu --ncu --kernel gather         bytes in DRAM next to those that must move",
    "dsv4kv profile --from server.nsys-rep            what the KV cache costs your server",
    "dsv4kv profile --diff before.json after.json     which kernels changed",
)
_WITH = {name: f"Profile with {row.explains}." for name, row in PROFILERS.items()}
_FROM = "Show a profile: .nsys-rep, .sqlite, .ncu-rep, a Chrome trace, or a run record."
_RANGE = "Range that is a step, with --from and --diff; * stands for anything."


@dataclass(frozen=True)
class Forms:
    """Where a record goes in addition to its file: ``--json`` and ``--html``."""

    json: str | None
    html: Path | None

    @property
    def alone(self) -> bool:
        """Whether standard output is for the record alone."""
        return self.json == "-"

    def write(self, record: "RunRecord", saved: "Saved | None" = None) -> None:
        """Write the record in every form, and say where it was saved."""
        from dsv4kv.runs.store import dumps
        from dsv4kv.view.html import write_page
        from dsv4kv.view.runs import run_page

        if saved:
            say_saved(saved, silent=self.alone)
        if self.json:
            write_json(dumps(record), self.json)
        if self.html:
            write_page(run_page(record), self.html)
            say(f"page: {self.html}", err=True)


def profile(
    config: Annotated[
        Text, argument(f"A YAML file or a shipped name: {listed(shipped_names('bench'))}.")
    ] = None,
    nsys: Annotated[bool, flag("--nsys", _WITH["nsys"])] = False,
    ncu: Annotated[bool, flag("--ncu", _WITH["ncu"])] = False,
    torch: Annotated[bool, flag("--torch", _WITH["torch"])] = False,
    auto: Annotated[
        bool, flag("--auto", "nsys if it and a GPU are there, else torch.profiler.")
    ] = False,
    from_: Annotated[Path | None, option(_FROM, "FILE", "--from")] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        option("Compare two profiles that exist.", "A B", show_default=False),
    ] = None,
    set_: Settings = None,
    steps: Annotated[int | None, option("Decode steps to profile: 10, with ncu 1.", min=1)] = None,
    kernel: Annotated[Text, option("Kernels that ncu looks at: all.", "REGEX")] = None,
    step: Annotated[str, option(_RANGE, "NAME", rare=True)] = _STEP,
    memory: Annotated[
        bool, flag("--memory", rare=True, text="Also count memory around building the pools.")
    ] = False,
    print_command: Annotated[
        bool, flag("--print-command", "Print the profiler's command line only.")
    ] = False,
    verbose: Annotated[
        bool, flag("--verbose -v --full", "Every kernel, its full name and how it was launched.")
    ] = False,
    timeline: Annotated[
        list[Path] | None,
        option("Write one step: .svg, or .json for Perfetto.", "FILE", callback=to_file),
    ] = None,
    timeout: Annotated[
        float, option("Seconds that nsys or ncu may take.", rare=True, min=1)
    ] = _TIMEOUT_S,
    out: Out = RESULTS,
    json_: JsonFile = None,
    html: Html = None,
    child: Annotated[Path | None, option("", "FILE", hidden=True)] = None,
) -> None:
    """Profile decode steps of a workload, or show a profile of this or another program.

    A step's time goes to kernels, to gaps between them and to the host; kernels of vLLM, SGLang,
    FlashMLA and TensorRT-LLM are known by what they do to the KV cache.
    """
    from dsv4kv.view.profile import refuse_other_names

    tools: dict[Tool, bool] = {"nsys": nsys, "ncu": ncu, "torch": torch}
    if sum([*tools.values(), auto, from_ is not None, diff is not None]) > 1:
        raise ConfigError("--nsys, --ncu, --torch, --auto, --from and --diff: choose one of them.")
    wanted: Tool | None = next((name for name, given in tools.items() if given), None)
    idle: dict[str, object] = {"--step": step != _STEP}
    if from_ is not None or diff is not None:
        idle = {"CONFIG": config, "--set": set_, "--steps": steps, "--kernel": kernel}
        idle |= {"--memory": memory, "--print-command": print_command}
        idle |= {"--timeline": diff and timeline}
    if names := [name for name, given in idle.items() if given]:
        raise ConfigError(
            f"{', '.join(names)}: of no use here. --from and --diff show profiles that exist, "
            "with --step; what is to be run is given by CONFIG, --set, --steps, --kernel and "
            "--memory."
        )
    refuse_other_names(timeline or [])
    if diff is not None:
        _show_diff(diff, step, verbose=verbose)
    elif from_ is not None:
        _keep_file(from_, step, timeline or [], out, Forms(json_, html), verbose=verbose)
    elif child is not None:
        from dsv4kv.bench.profile import be_profiled

        plan = _make_plan(config, set_ or [], "nsys", steps, child.parent)
        be_profiled(replace(plan, folder=child.parent), child)
    else:
        plan = _make_plan(config, set_ or [], wanted, steps, out, kernel, timeout)
        if print_command:
            _print_command(plan)
        else:
            _run(plan, out, timeline or [], Forms(json_, html), memory=memory, verbose=verbose)


def _make_plan(
    config: str | None,
    overrides: list[str],
    wanted: "Tool | None",
    steps: int | None,
    out: Path,
    kernel: str | None = None,
    timeout: float = _TIMEOUT_S,
) -> "Plan":
    from dsv4kv.bench.profile import Plan, choose_tool, name_folder
    from dsv4kv.config.load import load_config

    if kernel is not None and wanted != "ncu":
        raise ConfigError("--kernel chooses kernels for ncu: add --ncu.")
    loaded = load_config(config, overrides)
    tool, why = choose_tool(wanted, loaded.config.device)
    return Plan(
        loaded=loaded,
        overrides=overrides,
        argv=["dsv4kv", *sys.argv[1:]],
        tool=tool,
        why=why,
        steps=steps,
        folder=name_folder(loaded, out),
        kernels=kernel,
        timeout_s=timeout,
    )


def _print_command(plan: "Plan") -> None:
    from dsv4kv.bench.profile import make_command

    command = make_command(plan)
    say(shlex.join(command.words))
    say(f"it needs the folder {plan.folder}, and writes a report and run.json", err=True)
    if command.dropped:
        dropped = ", ".join(command.dropped)
        say(f"left out, as this {plan.tool} does not know it: {dropped}", err=True)


def _run(
    plan: "Plan", out: Path, timelines: list[Path], forms: Forms, *, memory: bool, verbose: bool
) -> None:
    """Profile, keep the record, and show it."""
    from dsv4kv.bench.profile import run_profile
    from dsv4kv.measure.profilers.launch import name_files
    from dsv4kv.runs.imported import load_profile
    from dsv4kv.runs.store import save_record
    from dsv4kv.view.profile import write_timeline

    try:
        record = run_profile(plan, memory=memory)
    except KeyboardInterrupt:
        if plan.folder.is_dir():
            say(f"stopped. {name_files(plan.folder)}", err=True)
        raise
    saved = save_record(record, out)
    source = load_profile(saved.path, _STEP)
    if source.table.timeline:
        for name in _TIMELINES:
            write_timeline(source.table.timeline, plan.folder / name)
    _show(source, saved.path, timelines, quiet=forms.alone, verbose=verbose)
    if not forms.alone:
        say(f"files: {plan.folder}")
    forms.write(record, saved)


def _keep_file(
    path: Path, step: str, timelines: list[Path], out: Path, forms: Forms, *, verbose: bool
) -> None:
    """Show a profile that exists; one of a profiler becomes a record, which is all to keep."""
    from dsv4kv.runs.imported import load_profile, record_of_profile
    from dsv4kv.runs.store import save_record

    source = load_profile(path, step)
    _show(source, path, timelines, quiet=forms.alone, verbose=verbose)
    if source.record is not None:
        forms.write(source.record)
        return
    record = record_of_profile(source.profile, path, step, ["dsv4kv", *sys.argv[1:]])
    forms.write(record, save_record(record, out))


def _show(
    source: "Source", path: Path, timelines: list[Path], *, quiet: bool, verbose: bool
) -> None:
    from dsv4kv.view.facts import layers_text
    from dsv4kv.view.profile import profile_page, write_timeline
    from dsv4kv.view.render import show
    from dsv4kv.view.table import Command

    layers = layers_text(source.record.cases) if source.record else ""
    page = profile_page(source.profile, source.yardstick, layers=layers)
    again = Command(f"dsv4kv profile --from {shlex.quote(str(path))} --verbose")
    show(page.in_full() if verbose else [*page.answer, "", again], open_console(quiet=quiet))
    for target in timelines:
        if source.table.timeline is None:
            raise ConfigError(f"{path} has no timeline: ncu runs each kernel by itself.")
        write_timeline(source.table.timeline, target)


def _show_diff(paths: tuple[Path, Path], step: str, *, verbose: bool) -> None:
    from dsv4kv.runs.imported import load_profile
    from dsv4kv.view.profile import diff_page
    from dsv4kv.view.render import show

    before, after = (load_profile(path, step).table for path in paths)
    names = paths[0].name, paths[1].name
    page = diff_page(before, after, names)
    show(page.in_full() if verbose else page.answer)
