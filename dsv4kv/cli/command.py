"""What a command does around its function: errors as sentences, help as wide as the terminal."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dsv4kv.errors import Dsv4kvError
from dsv4kv.view.console import say


class Group(TyperGroup):
    """Prints an error of ours as sentences on stderr, with its exit code."""

    def get_params(self, ctx: Any) -> Any:
        """The options, flags of typer's own (help, completion) with a default."""
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False  # to convert None, typer imports pydantic
        return params

    def invoke(self, ctx: Any) -> Any:
        """Run a command of the group."""
        try:
            return super().invoke(ctx)
        except Dsv4kvError as error:
            for sentence in str(error).splitlines():
                say(f"error: {sentence}", err=True)
            raise typer.Exit(error.exit_code) from None


class Command(TyperCommand):
    """A command; paragraphs of its help are as wide as the terminal, not as their source."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """As typer's."""
        super().__init__(*args, **options)
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)


def take(app: typer.Typer) -> None:
    """Make every command of a program, and of its groups, a ``Command``."""
    for command in app.registered_commands:
        if command.cls is None or not issubclass(command.cls, Command):
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance:
            take(group.typer_instance)
