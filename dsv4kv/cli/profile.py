"""``dsv4kv profile``: which kernels take the time, by whichever profiler is there."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import PROFILERS, listed
from dsv4kv.cli.records import say_saved, write_json
from dsv4kv.cli.targets import to_page
from dsv4kv.files import shipped_names
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsv4kv.bench.profile import Plan, Tool
    from dsv4kv.record.imported import Source
    from dsv4kv.record.schema import RunRecord
    from dsv4kv.record.store import Saved

_STEP = "step"
_TIMELINES = ("timeline.svg", "timeline.json")
"""Pictures of one step, next to the profiler's own files."""
_TIMEOUT_S = 600.0

EPILOG = """\
[bold]Examples[/bold]

dsv4kv profile                                   nsys if it is there, else torch.profiler

dsv4kv profile gpu --nsys --print-command        the command line, and nothing else

dsv4kv profile gpu --ncu --kernel gather         bytes in DRAM next to those that must move

dsv4kv profile --from server.nsys-rep            what the KV cache costs your server

dsv4kv profile --diff before.json after.json     which kernels changed
"""


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
        from dsv4kv.record.store import dumps
        from dsv4kv.view.page.write import write_page

        if saved:
            say_saved(saved, silent=self.alone)
        if self.json:
            write_json(dumps(record), self.json)
        if self.html:
            write_page([record], self.html)
            say(f"page: {self.html}", err=True)


def _profiler(name: str) -> Any:
    return typer.Option(f"--{name}", help=f"Profile with {PROFILERS[name].explains}.")


def profile(
    config: Annotated[
        str | None,
        typer.Argument(
            help=f"A YAML file or a shipped name: {listed(shipped_names('bench'))}.",
            show_default=False,
        ),
    ] = None,
    nsys: Annotated[bool, _profiler("nsys")] = False,
    ncu: Annotated[bool, _profiler("ncu")] = False,
    torch: Annotated[bool, _profiler("torch")] = False,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="nsys if it and a GPU are there, else torch.profiler."),
    ] = False,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Show a profile that exists: .nsys-rep, .sqlite, .ncu-rep, a Chrome trace, or a "
            "run record.",
        ),
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Compare two profiles that exist.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: device=cpu.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Decode steps to profile: 10, with ncu 1.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Kernels that ncu looks at: all.")
    ] = None,
    step: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Range that is a step, with --from and --diff; * stands for anything.",
        ),
    ] = _STEP,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also count memory around building the pools.")
    ] = False,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="Print the profiler's command line only.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Every kernel, its full name and how it was launched."),
    ] = False,
    timeline: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write one step: .svg, or .json for Perfetto."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that nsys or ncu may take.")
    ] = _TIMEOUT_S,
    out: Annotated[Path, typer.Option(help="Folder for the run record.")] = Path("results"),
    json_: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the record here; - prints only it."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.html", help="Also write a page to show.", callback=to_page),
    ] = None,
    child: Annotated[Path | None, typer.Option(metavar="FILE", hidden=True)] = None,
) -> None:
    """Profile decode steps of a workload, or show a profile of this or another program.

    A step's time goes to kernels, to gaps between them and to the host; kernels of vLLM, SGLang,
    FlashMLA and TensorRT-LLM are known by what they do to the KV cache.
    """
    wanted = _chosen({"nsys": nsys, "ncu": ncu, "torch": torch, "auto": auto}, from_, diff)
    of_a_run = {"CONFIG": config, "--set": set_, "--steps": steps, "--kernel": kernel}
    of_a_run |= {"--memory": memory, "--print-command": print_command}
    of_a_file = {"--step": step != _STEP}
    _refuse_idle(of_a_file if from_ is None and diff is None else of_a_run, timeline or [], diff)
    if diff is not None:
        _show_diff(diff, step, full=full)
    elif from_ is not None:
        _keep_file(from_, step, timeline or [], out, Forms(json_, html), full=full)
    elif child is not None:
        _be_child(config, set_ or [], steps, child)
    else:
        plan = _make_plan(config, set_ or [], wanted, steps, out, kernel, timeout)
        if print_command:
            _print_command(plan)
        else:
            _run(plan, out, timeline or [], Forms(json_, html), memory=memory, full=full)


def _chosen(
    tools: dict[str, bool], from_: Path | None, diff: tuple[Path, Path] | None
) -> "Tool | None":
    """The profiler asked for; None where none is."""
    from dsv4kv.errors import ConfigError

    given = [name for name, wanted in tools.items() if wanted]
    if len(given) + (from_ is not None) + (diff is not None) > 1:
        raise ConfigError("--nsys, --ncu, --torch, --auto, --from and --diff: choose one of them.")
    names: dict[str, Tool] = {"nsys": "nsys", "ncu": "ncu", "torch": "torch"}
    return next((names[name] for name in given if name in names), None)


def _refuse_idle(
    options: "Mapping[str, object]", timelines: list[Path], diff: tuple[Path, Path] | None
) -> None:
    """Refuse options that would do nothing here, and timelines before anything takes its time."""
    from dsv4kv.errors import ConfigError
    from dsv4kv.view.profile import refuse_other_names

    idle = [name for name, given in options.items() if given]
    idle += ["--timeline"] if diff and timelines else []
    if idle:
        raise ConfigError(
            f"{', '.join(idle)}: of no use here. --from and --diff show profiles that exist, with "
            "--step; what is to be run is given by CONFIG, --set, --steps, --kernel and --memory."
        )
    refuse_other_names(timelines)


def _make_plan(
    config: str | None,
    overrides: list[str],
    wanted: "Tool | None",
    steps: int | None,
    out: Path,
    kernel: str | None = None,
    timeout: float = _TIMEOUT_S,
) -> "Plan":
    import sys

    from dsv4kv.bench.profile import Plan, choose_tool, name_folder
    from dsv4kv.config.load import load_config
    from dsv4kv.errors import ConfigError

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


def _be_child(config: str | None, overrides: list[str], steps: int | None, target: Path) -> None:
    """Be the program that nsys or ncu looks at."""
    from dataclasses import replace

    from dsv4kv.bench.profile import be_profiled

    plan = _make_plan(config, overrides, "nsys", steps, target.parent)
    be_profiled(replace(plan, folder=target.parent), target)


def _print_command(plan: "Plan") -> None:
    import shlex

    from dsv4kv.bench.profile import make_command

    command = make_command(plan)
    say(shlex.join(command.words))
    say(f"it needs the folder {plan.folder}, and writes a report and run.json", err=True)
    if command.dropped:
        dropped = ", ".join(command.dropped)
        say(f"left out, as this {plan.tool} does not know it: {dropped}", err=True)


def _run(
    plan: "Plan", out: Path, timelines: list[Path], forms: Forms, *, memory: bool, full: bool
) -> None:
    """Profile, keep the record, and show it."""
    from dsv4kv.bench.profile import run_profile
    from dsv4kv.measure.profilers.sessions import name_files
    from dsv4kv.record.imported import load_profile
    from dsv4kv.record.store import save_record
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
    _show(source, saved.path, timelines, quiet=forms.alone, full=full)
    if not forms.alone:
        say(f"files: {plan.folder}")
    forms.write(record, saved)


def _keep_file(
    path: Path, step: str, timelines: list[Path], out: Path, forms: Forms, *, full: bool
) -> None:
    """Show a profile that exists; one of a profiler becomes a record, which is all to keep."""
    import sys

    from dsv4kv.record.imported import load_profile, record_of_profile
    from dsv4kv.record.store import save_record

    source = load_profile(path, step)
    _show(source, path, timelines, quiet=forms.alone, full=full)
    if source.record is not None:
        forms.write(source.record)
        return
    record = record_of_profile(source.profile, path, step, ["dsv4kv", *sys.argv[1:]])
    forms.write(record, save_record(record, out))


def _show(source: "Source", path: Path, timelines: list[Path], *, quiet: bool, full: bool) -> None:
    from dsv4kv.errors import ConfigError
    from dsv4kv.view.facts import layers_text
    from dsv4kv.view.headline import report_profile_answer
    from dsv4kv.view.profile import report_profile, write_timeline
    from dsv4kv.view.terminal import show

    layers = layers_text(source.record.cases) if source.record else ""
    parts = report_profile(source.profile, source.yardstick, full=full, layers=layers)
    show([*parts, *report_profile_answer(source.table, layers)], open_console(quiet=quiet))
    for target in timelines:
        if source.table.timeline is None:
            raise ConfigError(f"{path} has no timeline: ncu runs each kernel by itself.")
        write_timeline(source.table.timeline, target)


def _show_diff(paths: tuple[Path, Path], step: str, *, full: bool) -> None:
    from dsv4kv.record.imported import load_profile
    from dsv4kv.view.profile import MOST_ROWS
    from dsv4kv.view.profile_diff import report_diff
    from dsv4kv.view.terminal import show

    before, after = (load_profile(path, step).table for path in paths)
    names = paths[0].name, paths[1].name
    show(report_diff(before, after, names, most=None if full else MOST_ROWS))
