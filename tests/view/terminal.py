"""What a terminal of 100 columns without colours shows."""

from io import StringIO

from rich.console import Console

from dsv4kv.runs.schema import RunRecord
from dsv4kv.view.record import report_record
from dsv4kv.view.table import Part
from dsv4kv.view.terminal import show


def shown(*parts: Part, width: int = 100) -> str:
    """Text of parts below each other, without the blanks at the ends of lines."""
    file = StringIO()
    # as dsv4kv.view.console.open_console makes one
    show(parts, Console(file=file, width=width, color_system=None, markup=False, emoji=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def told(record: RunRecord, *, width: int = 100, quiet: bool = False) -> str:
    """Text of a whole record."""
    return shown(*report_record(record, quiet=quiet), width=width)
