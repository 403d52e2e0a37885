"""Where everything is printed: as text, whatever files and names hold."""

import os
import sys
from collections.abc import Iterable
from functools import partial
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

import typer

from dsv4kv.errors import mask_secrets

if TYPE_CHECKING:
    from rich.console import Console


_WIDTH = 110  # what the widest table needs; a file or pipe has no width of its own

# Control characters but for tab and newline, those that turn the direction of what follows, and
# halves of characters, which no stream can encode.
_UNPRINTED: dict[int, str | None] = dict.fromkeys(
    [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
) | dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")
_ESCAPED = {code: f"\\u{code:04x}" for code in _UNPRINTED if code > 32}


_SHOWN = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(32), *(code for code in _UNPRINTED if not 0xD800 <= code < 0xE000))
}


def one_line(text: str) -> str:
    r"""The text of a cell or a line, with escapes for control characters: ``a\nb``."""
    return text if text.isprintable() else text.translate(_SHOWN)


def escaped(text: str) -> str:
    r"""Lines for a page or a picture, with escapes for control characters except line ends."""
    return text.translate({code: _SHOWN[code] for code in _UNPRINTED if code in _SHOWN})


def _printable(text: str) -> str:
    return text.translate(_UNPRINTED)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print text on standard output, or sentences without secrets on standard error."""
    whole = _printable(text)
    if err:
        whole = mask_secrets(whole)
        if sys.stderr and sys.stderr.isatty():  # between words: a terminal breaks them anywhere
            wrap = partial(fill, width=get_terminal_size().columns, break_long_words=False)
            whole = "\n".join(wrap(line, break_on_hyphens=False) for line in whole.splitlines())
    try:
        typer.echo(whole + end, err=err, nl=False)
    except OSError as error:
        if not err or isinstance(error, BrokenPipeError):
            raise
        # a full disk: the exit code still says it, which Python would replace as it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_document(text: str) -> None:
    """Print JSON for programs: in UTF-8 whatever the stream's encoding, and whole."""
    typer.echo(text.rstrip("\n").translate(_ESCAPED).encode())


def open_console(
    *, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False
) -> "Console":
    """Standard output (or error), as wide as the terminal, or as tables need where there is none.

    Brackets and colons in names are text: nothing in them is markup.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class TextConsole(Console):
        """Prints control characters that rich makes, and none that a text holds."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                harmless = control or text.isprintable()
                yield Segment(text if harmless else _printable(text), style, control)

    console = TextConsole(
        stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, markup=False, emoji=False
    )
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH
    return console


def lose_glyphs_not_answers() -> None:
    """On a stream that is not UTF-8, print ? for what it cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
