"""The command line: one module per command, imported when the command is chosen.

Command modules import the rest of the toolkit inside their functions, so that their ``--help``
needs neither torch nor pydantic.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dsv4kv import __version__
from dsv4kv.errors import DEFECT, INTERRUPTED, ConfigError, DeviceError, Dsv4kvError
from dsv4kv.view.console import lose_glyphs_not_answers, say

_GROUPS = {
    "Plan": {
        "budget": "Estimate KV-cache capacity: requests that fit, GPUs needed, what frees memory.",
        "plan": "Find the fewest GPUs, or the lowest cost, that meet an SLO on a trace.",
        "explain": "Explain start-up logs, launch commands, profiles and benchmark results.",
    },
    "Traffic": {
        "trace": "Summarize, convert, synthesize and tokenize traces; hit rate by cache size.",
        "replay": "Replay a trace in virtual time: hit rate, lost hits by cause, latency.",
        "record": "Record a running server's KV events, requests and metrics into a folder.",
        "watch": "Watch the cache of a server that is recorded: hits, churn, cached blocks.",
    },
    "Kernels": {
        "bench": "Serve a workload over a real cache; measure and verify every operation.",
        "bench op": "Check one operation against the reference, then time it.",
        "compare": "Compare two runs, revisions or backends: SAME, FASTER, SLOWER or UNCLEAR.",
        "profile": "Profile decode steps, or open a profile of nsys, ncu or torch.profiler.",
        "kernels": "Compile every CUDA kernel: registers, spills, changes of machine code.",
    },
    "Check": {
        "probe": "Test a running server's prefix cache with prompts that it has never seen.",
        "inspect": "Find the entry format of dumped cache pages, and corrupt entries.",
        "lint": "Find known faults of engines in commands and logs, and benchmark pitfalls.",
        "conform": "Check an engine's cache manager: lost blocks, false hits, stuck requests.",
        "doctor": "Check this machine: what it has, what is missing and what that disables.",
    },
    "Files": {
        "report": "Show and export saved runs, by file or by name.",
        "config": "Show configurations and list their keys.",
    },
}
_HIDDEN = {
    "bench systems": "Run three designs of the cache on the same data, and compare every output.",
    "bench tiers": "Store prefixes in host memory and on disk, restore them, and check every bit.",
    "bench transfer": "Move a cache from a prefill to a decode process, check every bit, and time "
    "reads.",
    "replay calibrate": "Fit the step times of replay to measured runs of your own server.",
    "report list": "List saved runs, oldest first, and unfinished sweeps.",
}
COMMANDS = {name: text for rows in _GROUPS.values() for name, text in rows.items()} | _HIDDEN
"""Every command by name, of one word or two: the first paragraph of its help."""
_MODULES = {
    **dict.fromkeys(("conform", "doctor", "inspect", "lint", "probe"), "checks"),
    **dict.fromkeys(("config", "report", "report list"), "saved"),
    "kernels": "profile",
    "watch": "record",
}
ENDINGS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_UNANSWERED = "interrupted before there was an answer."
_PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it


def examples(*lines: str) -> str:
    """The end of a help: command lines, and what each is for, next to it or above it."""
    pairs = [[part.strip() for part in f"{line}  ".split("  ", 1)] for line in lines]
    fitting = [len(line) for line, said in pairs if said and len(line + said) <= 75]
    column, shown = max(fitting, default=0), list[str]()
    for line, said in pairs:
        besides = (f"{line:{column}}   {said}".rstrip(), f"{line}   {said}".rstrip())
        beside = next((each for each in besides if len(each) <= 78), "")
        shown += [beside] if beside else [f"# {said}", line] if said else [line]
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(shown)


_HELP = {"help_option_names": ["-h", "--help"]}
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "context_settings": _HELP,
    "rich_markup_mode": "rich",
}
_EPILOG = examples(
    "dsv4kv budget --model v4-pro --gpus 8 --engine vllm   what fits on 8 × H200",
    "dsv4kv explain startup.log                            what an engine's numbers mean",
    "dsv4kv replay builtin:chat                            hit rate and latency of a trace",
    "dsv4kv bench                                          operations on this machine",
)
_METAVARS = {"str": "NAME", "Path": "FILE", "int": "N", "float": "N"}
"""What a help calls values, by their type, where an option does not say."""


class _Plain:
    """Help without the types of flags and arguments, and without importing pydantic for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; refusals are in our words, not pydantic's."""
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
            return rest
        except typer.BadParameter as error:
            words = error.message.removeprefix("Value error, ").partition(", unable to")[0]
            error.message = words.replace("Input should be", "must be", 1)
            raise

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.metavar is None:
                name = param.name.upper() if param.param_type_name == "argument" else None
                param.metavar = name or _METAVARS.get(param.bare_type())
            if param.param_type_name == "argument":
                if not param.type_descriptor.is_choice:
                    param.display_type_rich = lambda ctx: None
            elif param.is_flag:
                param.metavar = ""
                if param.default is None:
                    param.default = False  # to convert None, typer imports pydantic
        return params


class Group(_Plain, TyperGroup):
    """Commands of a command."""


class Program(Group):
    """All commands; prints an error of ours as sentences on stderr, with its exit code."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        """Find a command of two words or one, and import it."""
        for count in (2, 1):
            name = " ".join(args[:count])
            if name in self.commands:
                return name, load_command(name), args[count:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Dsv4kvError as error:
            sentences, code = str(error), error.exit_code
        except KeyboardInterrupt:
            say(_UNANSWERED, err=True)
            raise typer.Exit(INTERRUPTED) from None
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
            elif isinstance(error, MemoryError) or str(error) == "can't start new thread":
                sentences = "there is not enough memory for this."
            elif isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                sentences = _describe_refusal(error)
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


class Command(_Plain, TyperCommand):
    """A command; paragraphs of its help are as wide as the terminal, not as their source."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        params: list[Any] = [each for each in self.params if getattr(each, "hidden", False)]
        self._hidden = [each for each in params if each.help]  # the others are for the program
        if self._hidden:
            count = sum(each.param_type_name == "option" for each in self._hidden)
            more = f"--help-all shows {count} more options."
            self.epilog = f"{self.epilog or ''}\n\n{more}"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; ``--help-all`` is the help with hidden options.

        ``--json`` prints one document; of commands that also write it, it is ``--json=-``.
        """
        if "--help-all" not in args:
            if any(
                each.name == "json_" and not getattr(each, "is_flag", False)
                for each in self.params
            ):
                pairs = zip(args, [*args[1:], "--"], strict=False)
                args = [
                    "--json=-" if word == "--json" and after[:1] == "-" != after else word
                    for word, after in pairs
                ]
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


_LOADED: dict[str, typer.Typer] = {}
"""Commands of the modules that were imported."""


def group(name: str, example: str) -> typer.Typer:
    text, more = COMMANDS[name], _PLAIN | {"cls": Group, "no_args_is_help": True}
    _LOADED[name] = typer.Typer(help=text, epilog=examples(example), **more)
    return _LOADED[name]


def command(
    name: str, *lines: str, kind: type[Command] = Command, before: str = "", **more: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command, or one of a group, with examples; ``before`` is said before them."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        first, _, last = name.partition(" ")
        is_own = name in COMMANDS
        own = _LOADED.setdefault(name, typer.Typer(**_PLAIN)) if is_own else _LOADED[first]
        more["epilog"], more["context_settings"] = before + examples(*lines), _HELP
        return own.command(name if is_own else last, cls=kind, **more)(function)

    return register


@cache
def load_command(name: str) -> Any:
    import_module(f"{__name__}.{_MODULES.get(name, name.partition(' ')[0])}")
    return get_command(_LOADED[name])


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"dsv4kv {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="dsv4kv",
    cls=Program,
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings=_HELP,
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


for _panel, _rows in _GROUPS.items():
    for _name, _text in _rows.items():
        app.command(_name, help=_text, rich_help_panel=_panel)(lambda: None)
for _name, _text in _HIDDEN.items():
    app.command(_name, help=_text, hidden=True)(lambda: None)


def main() -> None:
    """Run the program; ends the process with its exit code."""
    os.environ["PYTHONSAFEPATH"] = "1"  # no child imports from the current folder
    if not os.environ.get("COLUMNS", "0").strip("0"):  # as some shells without a terminal say
        os.environ.pop("COLUMNS", None)
    gc.set_threshold(50_000)  # what start-up makes stays: it is not searched for cycles
    lose_glyphs_not_answers()
    debug = _take("--debug", sys.argv)
    try:
        on_endings()
        app(prog_name="dsv4kv")
    except SystemExit as end:
        if _reader_left(end):
            sys.exit(_PIPE_CLOSED)
        on_endings(lambda *_: os._exit(INTERRUPTED))  # the answer is written: threads are left
        raise
    except KeyboardInterrupt:  # beside a command: of a help that is printed
        say(_UNANSWERED, err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError):  # of a help, which no command's ``invoke`` prints
            say(f"error: {_describe_refusal(error)}", err=True)
            sys.exit(ConfigError.exit_code)
        say(f"error: {_describe_defect(error)}", err=True)
        sys.exit(DEFECT)


def on_endings(handler: Callable[..., Any] = signal.default_int_handler) -> None:
    """SIGTERM and SIGHUP are Ctrl-C from now on, unless they are ignored (nohup)."""
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _take(option: str, words: list[str]) -> bool:
    """Whether an option is among the words of a command; takes it out, wherever it is."""
    end = words.index("--") if "--" in words else len(words)
    wanted = option in words[:end]
    words[:end] = [word for word in words[:end] if word != option]
    return wanted


def _describe_refusal(error: OSError) -> str:
    """A name too long, a full disk: the user's to change, no defect."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}."


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
