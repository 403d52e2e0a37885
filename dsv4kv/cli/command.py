"""What a command does around its function: errors as sentences, and answers to a shell."""

import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dsv4kv.cli.project import Project, find_project
from dsv4kv.errors import DeviceError, Dsv4kvError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from typer._click import Context


VARIABLE = "DSV4KV_NO_SETTINGS"
"""Of the environment: where it has a value, no project's settings are looked for."""
IGNORED = "dsv4kv.no_settings"
"""In the context of a command line that says so."""
_HELP = {"-h", "--help"}


class Group(TyperGroup):
    """Prints an error of ours as sentences on stderr, with its exit code."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option ``--help``."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False  # for a flag of None, typer imports pydantic
        return option

    def invoke(self, ctx: Any) -> Any:
        """Run a command of the group."""
        try:
            return super().invoke(ctx)
        except Dsv4kvError as error:
            for sentence in str(error).splitlines():
                say(f"error: {sentence}", err=True)
            raise typer.Exit(error.exit_code) from None
        except Exception as error:
            if not _is_of_importing_torch(error):
                raise
            command, reason = ctx.invoked_subcommand, f"{type(error).__name__}: {error}"
            say(
                f"error: `{ctx.command_path} {command}` needs torch, which cannot be imported "
                f"({reason}): pip install torch, or the build without CUDA, "
                "pip install torch --index-url https://download.pytorch.org/whl/cpu",
                err=True,
            )
            raise typer.Exit(DeviceError.exit_code) from None


class Command(TyperCommand):
    """A command whose options a project sets, and a shell asks about without waiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """As typer's; paragraphs of its help are as wide as the terminal, not as their source."""
        super().__init__(*args, **options)
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Read the words of a line, which a shell may ask about before it ends."""
        if ctx.resilient_parsing:
            return _look_at(self, ctx, args)
        project = None if _HELP & set(args) else project_of(ctx)
        if project is None:
            return super().parse_args(ctx, args)
        from dsv4kv.cli.settings import fill

        return fill(project, self, ctx, partial(super().parse_args, ctx, args))


def _is_of_importing_torch(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return sys.modules.get("torch") is None and (
        getattr(error, "name", None) == "torch"
        or any(frame.f_globals.get("__name__") == "torch" for frame, _ in frames)
    )


def project_of(ctx: "Context") -> Project | None:
    """Settings of the project that a command runs in; None if there are none, or none wanted.

    Raises:
        ConfigError: They cannot be read.
    """
    if IGNORED in ctx.meta or os.environ.get(VARIABLE):
        return None
    try:
        folder = Path.cwd()
    except OSError:  # it has been removed
        return None
    return find_project(folder)


def take(app: typer.Typer) -> None:
    """Make every command of a program, and of its groups, a ``Command``."""
    for command in app.registered_commands:
        if command.cls is None or not issubclass(command.cls, Command):
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance:
            take(group.typer_instance)


def _look_at(command: TyperCommand, ctx: "Context", args: list[str]) -> list[str]:
    """Take words as they are: to convert them, typer imports pydantic."""
    from typer._click.core import ParameterSource

    values, rest, _ = command.make_parser(ctx).parse_args(list(args))
    for param in command.params:
        given = ctx.params[param.name] = values.get(param.name)
        source = ParameterSource.DEFAULT if given is None else ParameterSource.COMMANDLINE
        ctx.set_parameter_source(param.name, source)
    ctx.args = rest
    return rest
