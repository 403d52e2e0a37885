"""The command line: one module per command, imported when the command is chosen.

Command modules import the rest of the toolkit inside their functions, so that their ``--help``
needs neither torch nor pydantic.
"""

import os
import signal
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dsv4kv import __version__
from dsv4kv.errors import DEFECT, ConfigError, DeviceError, Dsv4kvError
from dsv4kv.view.console import lose_glyphs_not_answers, say

_MEASURE = {
    "bench": "Serve a workload over the cache; measure, verify and record every operation.",
    "compare": "Say whether one side is slower than another: SAME, FASTER, SLOWER or UNCLEAR.",
    "profile": "Profile decode steps of a workload, or show a profile of this or another program.",
    "replay": "Serve a trace in virtual time: what is reused, what is lost and why, at what cost.",
    "report": "Show saved runs again: machine, cache, rates, latencies and checks.",
    "results": "List, show and prune saved runs.",
    "kernels": "Compile every kernel that the shipped models need, and show what became of it.",
}
_PREPARE = {
    "calibrate": "Fit the clock of replay to measured runs of your own server.",
    "conform": "Check an engine's cache manager: no block lost, no false hit, no request stuck.",
    "doctor": "Report what this machine has and lacks; fails if the default bench could not run.",
    "budget": "Say what fits: contexts and loads on GPUs, GPUs for a load, or what to change.",
    "inspect": "Find the record format and the faults of pages that were dumped from an engine.",
    "lint": "Find known faults of engines, and traps of benchmarks, before they cost a day.",
    "plan": "Find the fewest GPUs, or least money, that keep latencies at a trace's rate.",
    "probe": "Examine a running server's prefix cache with prompts that it has never seen.",
    "record": "Record a running server's KV events, requests and metrics into a folder.",
    "watch": "Watch the cache of a server that is recorded: hits, churn, what settings lose.",
    "trace": "Look at serving traces, convert them to the toolkit's format, make synthetic ones.",
    "config": "Show, check and explain bench configurations.",
}
COMMANDS = _MEASURE | _PREPARE
"""Every command by name: the first sentences of its help."""

ENDINGS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it


def examples(*lines: str) -> str:
    """The end of a help: example command lines."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)


_EPILOG = examples(
    "dsv4kv bench                                      run the shipped default on this machine",
    "dsv4kv bench smoke --set cache.block_tokens=256   change one setting",
    "dsv4kv config show smoke > mine.yaml              start a configuration of your own",
    "dsv4kv budget --gpu h200 --gpus 8                 what fits on eight GPUs",
)


class Group(TyperGroup):
    """Commands, for whose help typer imports no pydantic."""

    def get_params(self, ctx: Any) -> Any:
        """The options, flags of typer's own (help, completion) with a default."""
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False  # to convert None, typer imports pydantic
        return params


class Program(Group):
    """All commands; prints an error of ours as sentences on stderr, with its exit code."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find a command; it is imported here, and shown by its row of ``COMMANDS`` before."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load_command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Dsv4kvError as error:
            sentences, code = str(error), error.exit_code
        except Exception as error:
            code = ConfigError.exit_code
            if _is_of_importing_torch(error):  # an OSError, where a library is missing
                sentences = (
                    f"`{ctx.command_path} {ctx.invoked_subcommand}` needs torch, which cannot be "
                    f"imported ({type(error).__name__}: {error}): pip install torch, or the build "
                    "without CUDA, pip install torch --index-url "
                    "https://download.pytorch.org/whl/cpu"
                )
                code = DeviceError.exit_code
            elif isinstance(error, MemoryError):
                sentences = "there is not enough memory for this."
            elif isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                # a name too long, a full disk: the user's to change, no defect
                place = f"{error.filename}: " if error.filename else ""
                sentences = f"{place}{error.strerror or error}."
            else:
                raise
        for sentence in sentences.splitlines():
            say(f"error: {sentence}", err=True)
        raise typer.Exit(code)


def _is_of_importing_torch(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return sys.modules.get("torch") is None and (
        getattr(error, "name", None) == "torch"
        or any(frame.f_globals.get("__name__") == "torch" for frame, _ in frames)
    )


def _is_hidden(param: Any) -> bool:
    return bool(getattr(param, "hidden", False) and param.help)


class Command(TyperCommand):
    """A command; paragraphs of its help are as wide as the terminal, not as their source."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        # those without help are for the program itself
        self._hidden: list[Any] = [each for each in self.params if _is_hidden(each)]
        if self._hidden:
            more = f"--help-all shows {len(self._hidden)} more options."
            self.epilog = f"{self.epilog or ''}\n\n{more}"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; ``--help-all`` is the help with hidden options."""
        if "--help-all" not in args:
            return super().parse_args(ctx, args)
        for param in self._hidden:
            param.hidden = False
        try:
            return super().parse_args(ctx, ["--help"])
        finally:
            for param in self._hidden:
                param.hidden = True

    def invoke(self, ctx: Any) -> Any:
        """Run it, unless it would write over what it reads."""
        if ctx.meta:
            from dsv4kv.cli.options import keep_inputs

            keep_inputs(ctx)
        return super().invoke(ctx)


def group(text: str, example: str) -> typer.Typer:
    """A command of commands."""
    return typer.Typer(
        cls=Group,
        add_completion=False,
        no_args_is_help=True,
        help=text,
        epilog=examples(example),
        rich_markup_mode="rich",
    )


@cache
def load_command(name: str) -> Any:
    """Import a command: ``app`` of its module, or the function named as the module."""
    module = import_module(f"{__name__}.{name}")
    own = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False, rich_markup_mode="rich")
        kind = getattr(module, "COMMAND", None)
        own.command(name, cls=kind, epilog=module.EPILOG)(getattr(module, name))
    for each in own.registered_commands:
        if each.cls is None or not issubclass(each.cls, Command):
            each.cls = Command
    return get_command(own)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"dsv4kv {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="dsv4kv",
    cls=Program,
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command below, too
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show where an unexpected error came from.")
    ] = False,
) -> None:
    """Benchmark and profile the DeepSeek-V4 KV cache."""


for _name, _text in COMMANDS.items():
    _panel = "Measure" if _name in _MEASURE else "Prepare"
    app.command(_name, help=_text, rich_help_panel=_panel)(lambda: None)


def main() -> None:
    """Run the program; ends the process with its exit code."""
    os.environ["PYTHONSAFEPATH"] = "1"  # no child imports from the current folder
    end_as_by_ctrl_c()
    lose_glyphs_not_answers()
    debug = _take("--debug", sys.argv)
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


def end_as_by_ctrl_c() -> None:
    """SIGTERM and SIGHUP are Ctrl-C from now on, but for those that are ignored (nohup)."""
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _take(option: str, words: list[str]) -> bool:
    """Whether an option is among the words of a command; takes it out, wherever it is."""
    end = words.index("--") if "--" in words else len(words)
    wanted = option in words[:end]
    words[:end] = [word for word in words[:end] if word != option]
    return wanted


def _describe_defect(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}dsv4kv{os.sep}" in frame.filename] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else "?"
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    return (
        f"this should not have happened ({text}; {place}, dsv4kv {__version__}): please report it "
        "to the supplier of dsv4kv, with the command and what it prints with --debug."
    )


def _reader_left(end: SystemExit) -> bool:
    """Whether the reader of our output has closed it (``| head``), which is no error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # at exit Python flushes once more: into nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return isinstance(end.__context__, BrokenPipeError)
