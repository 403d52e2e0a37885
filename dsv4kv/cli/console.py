"""Where tables are printed."""

import os

from rich.console import Console

_WIDTH = 110  # what the widest table needs; a file or pipe has no width of its own


def open_console() -> Console:
    """Standard output, as wide as the terminal, or as the tables need where there is none.

    Brackets and colons in names are text: nothing in them is markup.
    """
    console = Console(markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH
    return console
