"""What a terminal without colours shows."""

from collections.abc import Iterable
from io import StringIO

from rich.console import Console

from dsv4kv.view.render import show
from dsv4kv.view.table import Part


def shown(*parts: Part, width: int = 100) -> str:
    """Text of parts below each other."""
    file = StringIO()
    # as dsv4kv.view.console.open_console makes one
    show(parts, Console(file=file, width=width, color_system=None, markup=False, emoji=False))
    return file.getvalue().rstrip("\n")


def words(parts: Iterable[Part], width: int = 100) -> str:
    """The same, with one blank between words."""
    return " ".join(shown(*parts, width=width).split())
