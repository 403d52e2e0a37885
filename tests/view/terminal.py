"""What a terminal of 100 columns without colours shows."""

from io import StringIO

from rich.console import Console, RenderableType

from dsv4kv.record.schema import RunRecord
from dsv4kv.view.record import render_record


def shown(part: RenderableType, width: int = 100) -> str:
    """Text of a renderable, without the blanks at the ends of lines."""
    console = _console(width)
    console.print(part, markup=False, highlight=False)
    return _text(console)


def told(record: RunRecord, *, width: int = 100, quiet: bool = False) -> str:
    """Text of a whole record."""
    console = _console(width)
    render_record(record, console, quiet=quiet)
    return _text(console)


def _console(width: int) -> Console:
    """As ``cli.console.open_console`` makes one."""
    return Console(
        file=StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        markup=False,
        emoji=False,
    )


def _text(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
