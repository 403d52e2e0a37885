"""The command line: one file per subcommand, and here what they share.

Command modules import the rest of the toolkit inside their functions, so that ``--help`` needs
neither torch nor pydantic.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from dsv4kv import __version__
from dsv4kv.cli import (
    bench,
    budget,
    calibrate,
    compare,
    completion,
    config,
    conform,
    doctor,
    inspect,
    kernels,
    lint,
    plan,
    probe,
    profile,
    record,
    replay,
    report,
    results,
    trace,
    watch,
)
from dsv4kv.cli.command import IGNORED, Group, take
from dsv4kv.endings import end_as_by_ctrl_c
from dsv4kv.errors import DEFECT
from dsv4kv.view.console import lose_glyphs_not_answers, say

_PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it
_NO_SETTINGS = "--no-settings"

_EPILOG = """\
[bold]Examples[/bold]

dsv4kv bench                                      run the shipped default on this machine

dsv4kv bench smoke --set cache.block_tokens=256   change one setting

dsv4kv config show smoke > mine.yaml              start a configuration of your own

dsv4kv budget --gpu h200 --gpus 8                 what fits on eight GPUs
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"dsv4kv {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="dsv4kv",
    cls=Group,
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command below, too
    rich_markup_mode="rich",
    add_completion=False,  # its options import pydantic before any command: see completion
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show where an unexpected error came from.")
    ] = False,
    no_settings: Annotated[
        bool,
        typer.Option(_NO_SETTINGS, help="Ignore dsv4kv.yaml and \\[tool.dsv4kv] of projects."),
    ] = False,
) -> None:
    """Benchmark and profile the DeepSeek-V4 KV cache."""
    if no_settings:
        context.meta[IGNORED] = True


app.command("bench", rich_help_panel="Measure", epilog=bench.EPILOG)(bench.bench)
app.command("compare", rich_help_panel="Measure", epilog=compare.EPILOG)(compare.compare)
app.command("profile", rich_help_panel="Measure", epilog=profile.EPILOG)(profile.profile)
app.command("replay", rich_help_panel="Measure", epilog=replay.EPILOG)(replay.replay)
app.command("report", rich_help_panel="Measure", epilog=report.EPILOG)(report.report)
app.add_typer(results.app, cls=Group, name="results", rich_help_panel="Measure")
app.command("kernels", rich_help_panel="Measure", epilog=kernels.EPILOG)(kernels.kernels)
app.command("calibrate", rich_help_panel="Prepare", epilog=calibrate.EPILOG)(calibrate.calibrate)
app.command("conform", rich_help_panel="Prepare", epilog=conform.EPILOG)(conform.conform)
app.command("doctor", rich_help_panel="Prepare", epilog=doctor.EPILOG)(doctor.doctor)
app.command("budget", cls=budget.BudgetCommand, rich_help_panel="Prepare", epilog=budget.EPILOG)(
    budget.budget
)
app.command("inspect", rich_help_panel="Prepare", epilog=inspect.EPILOG)(inspect.inspect)
app.command("lint", rich_help_panel="Prepare", epilog=lint.EPILOG)(lint.lint)
app.command("plan", rich_help_panel="Prepare", epilog=plan.EPILOG)(plan.plan)
app.command("probe", rich_help_panel="Prepare", epilog=probe.EPILOG)(probe.probe)
app.command("record", rich_help_panel="Prepare", epilog=record.EPILOG)(record.record)
app.command("watch", rich_help_panel="Prepare", epilog=watch.EPILOG)(watch.watch)
app.add_typer(trace.app, cls=Group, name="trace", rich_help_panel="Prepare")
app.command("completion", rich_help_panel="Prepare", epilog=completion.EPILOG)(
    completion.completion
)
app.add_typer(config.app, cls=Group, name="config", rich_help_panel="Prepare")
take(app)


def main() -> None:
    """Run the program; ends the process with its exit code."""
    os.environ["PYTHONSAFEPATH"] = "1"  # no child imports from the current folder
    end_as_by_ctrl_c()
    lose_glyphs_not_answers()
    debug = _take("--debug", sys.argv)
    if _take(_NO_SETTINGS, sys.argv):
        sys.argv.insert(1, _NO_SETTINGS)
    if "_DSV4KV_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        app(prog_name="dsv4kv")
    except SystemExit as end:
        if _reader_left(end):
            sys.exit(_PIPE_CLOSED)
        raise
    except Exception as error:
        if debug:
            raise
        say(f"error: {_describe_defect(error)}", err=True)
        sys.exit(DEFECT)


def _take(option: str, words: list[str]) -> bool:
    """Whether an option is among the words of a command; takes it out, wherever it is."""
    end = words.index("--") if "--" in words else len(words)
    wanted = option in words[:end]
    words[:end] = [word for word in words[:end] if word != option]
    return wanted


def _describe_defect(error: Exception) -> str:
    """What happened, where, and whom to report it to."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}dsv4kv{os.sep}" in frame.filename] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else "?"
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    return (
        f"this should not have happened ({text}; {place}, dsv4kv {__version__}): please report it "
        "to whoever gave you dsv4kv, with the command and what it prints with --debug."
    )


def _reader_left(end: SystemExit) -> bool:
    """Whether whoever read our output has closed it (``| head``): nothing to complain about."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # at exit Python flushes once more: into nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return isinstance(end.__context__, BrokenPipeError)
