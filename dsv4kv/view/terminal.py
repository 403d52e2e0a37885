"""What is shown, on a terminal of any width: no number is cut and no interval broken.

A table that is too wide first wraps its headers, then its sentences; then minor columns go to a
second table below with the same names at the left. Columns for which there is no room even next to
the names alone are lists of ``header: value`` lines.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, repeat, zip_longest
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells

from dsv4kv.view.console import open_console
from dsv4kv.view.table import (
    MARKS,
    Bar,
    Cell,
    Column,
    Command,
    Facts,
    Finding,
    Histogram,
    Part,
    Picture,
    Spark,
    Stack,
    Table,
    Text,
    Tone,
    text_of,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

STYLES: Final[dict[Tone, str]] = {
    "plain": "",
    "strong": "bold",
    "dim": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "red",
}
_STACK_STYLES: Final = {
    "█": "blue",
    "▓": "magenta",
    "▞": "yellow",
    "▒": "cyan",
    "░": "green",
    "╳": "red",
}
_GAP: Final = 2  # blanks between columns
_LEAST_PROSE: Final = 24  # a narrower column of sentences is hard to read
_LEAST_LABEL: Final = 8
_BAR, _SPARK, _HISTOGRAM, _STACK = 12, 18, 10, 60  # characters of pictures
_AT_BLANKS: Final = re.compile(" ")
# but not before a unit, and not within an interval
_BETWEEN_WORDS: Final = re.compile(
    r"(?<![±…→]) (?![±…→%]|-[\d.,]+/\+|(?:[KMGT]?i?B|GB/s|tokens/s|ns|µs|ms|s)\b)"
)

_BETWEEN_ARGUMENTS: Final = re.compile(r" (?=(?:[^']*'[^']*')*[^']*$)")
_GOES_ON = " \\"

Piece = tuple[str, str]
"""Characters and their style."""
Line = list[Piece]


def show(parts: Iterable[Part], console: "Console | None" = None) -> None:
    """Print parts below each other, on standard output unless another is given."""
    console = console or open_console()
    for part in parts:
        console.print(Drawing(part))


@dataclass(frozen=True)
class Drawing:
    """A part as rich draws it; where a console does not wrap, it is as wide as it needs to be."""

    part: Part

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text as RichText

        width = 10**6 if options.no_wrap else options.max_width
        for line in draw(self.part, width):
            yield RichText.assemble(*line, no_wrap=True, overflow="ignore")


def draw(part: Part, width: int) -> Iterator[Line]:
    """Lines of at most ``width`` columns; a word that is longer is broken."""
    match part:
        case Table():
            yield from _draw_table(part.informative(pictures=True), width)
        case Facts():
            yield from _draw_facts(part, width)
        case Finding(level, sentence):
            sign, style = MARKS[level][0], STYLES[MARKS[level][1]]
            yield from _hang((sign, style), (sentence, style), width, cell_len(sign) + 1)
        case Stack():
            yield from _draw_stack(part, width)
        case Command():
            yield [(part, "")]
        case Text(value, tone):
            yield from ([(line, STYLES[tone])] for line in wrap(value, width))
        case str():
            yield from ([(line, "")] for line in wrap(part, width))


def wrap(text: str, width: int, at: re.Pattern[str] = _BETWEEN_WORDS) -> list[str]:
    """Lines of at most ``width`` columns, broken between words; a wider word is broken, too."""
    return [line for paragraph in text.split("\n") for line in _wrap(paragraph, width, at)]


def _wrap(paragraph: str, width: int, at: re.Pattern[str]) -> Iterator[str]:
    if cell_len(paragraph) <= width:
        yield paragraph
        return
    line = ""
    for number, word in enumerate(at.split(paragraph)):
        longer = f"{line} {word}" if number else word
        if number and cell_len(longer) > width:
            yield line
            longer = word
        *full, line = chop_cells(longer, width) or [""]
        yield from full
    yield line


def _longest(text: str, at: re.Pattern[str] = _BETWEEN_WORDS) -> int:
    """Width of the widest word."""
    return max(cell_len(word) for line in text.split("\n") for word in at.split(line))


def _hang(head: Piece, text: Piece, width: int, indent: int) -> Iterator[Line]:
    """A text next to its head, or below it where that would break a word or leave little room."""
    if max(_longest(text[0]), _LEAST_PROSE) + indent > width:
        yield [head]
        head, indent = ("", ""), 0
    for number, line in enumerate(wrap(text[0], width - indent)):
        yield [(_pad("" if number else head[0], indent), head[1]), (line, text[1])]


def _draw_facts(facts: Facts, width: int) -> Iterator[Line]:
    indent = max([_LEAST_LABEL, *map(cell_len, facts.rows)]) + _GAP
    for label, fact in facts.rows.items():
        text = _broken(fact, width - indent) if isinstance(fact, Command) else fact
        yield from _hang((label, STYLES["dim"]), (text, ""), width, indent)


def _broken(command: Command, width: int) -> str:
    """Lines that a shell joins, unless an argument is longer than a line."""
    room = width - len(_GOES_ON)
    if cell_len(command) <= width or _longest(command, _BETWEEN_ARGUMENTS) > room:
        return command
    return f"{_GOES_ON}\n".join(wrap(command, room, _BETWEEN_ARGUMENTS))


def _draw_stack(stack: Stack, width: int) -> Iterator[Line]:
    left = cell_len(stack.label) + _GAP
    room = max(1, min(_STACK, width - left - _GAP - cell_len(stack.whole)))
    ends = [round(room * end) for end in accumulate(part.share for part in stack.parts)]
    bar: Line = [(_pad(stack.label, left), "")]
    for part, start, end in zip(stack.parts, [0, *ends], ends, strict=False):
        bar.append((part.sign * (end - start), _STACK_STYLES.get(part.sign, STYLES["dim"])))
    yield [*bar, (f"{' ' * _GAP}{stack.whole}", "")]
    shown = [part for part in stack.parts if part.share]
    words = [f"{part.words} {part.size}" for part in shown]
    step = max(map(cell_len, words), default=0) + 2 + _GAP
    a_line = max(1, (width - left + _GAP) // step)
    for start in range(0, len(shown), a_line):
        line: Line = [(" " * left, "")]
        for part, word in list(zip(shown, words, strict=True))[start : start + a_line]:
            line.append((part.sign, _STACK_STYLES.get(part.sign, STYLES["dim"])))
            line += [(f" {word}", ""), (" " * (step - 2 - cell_len(word)), "")]
        yield line[:-1]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


@dataclass(frozen=True, eq=False)
class _Column:
    """A column with its cells as they are drawn, numbers one under another."""

    column: Column
    cells: list[Piece]

    @cached_property
    def width(self) -> int:
        """Of its widest cell."""
        lines = (line for text, _ in self.cells for line in text.split("\n"))
        return max(map(cell_len, lines), default=0)

    @cached_property
    def least(self) -> int:
        """So narrow it can be: sentences can be wrapped."""
        if self.column.kind != "prose":
            return self.width
        return max([min(self.width, _LEAST_PROSE), *(_longest(text) for text, _ in self.cells)])

    @cached_property
    def header_widths(self) -> list[int]:
        """Least widths of the header on one line, on two, and on as many as it has words."""
        header = self.column.header
        whole, least = cell_len(header), _longest(header, _AT_BLANKS)
        halves = (w for w in range(least, whole) if len(wrap(header, w, _AT_BLANKS)) <= 2)
        return [whole, next(halves, whole), least]


def _align(cells: Sequence[Cell]) -> Iterator[Piece]:
    """Texts of cells; where some have intervals, so wide that these are aligned."""
    spread = max((len(cell.spread) for cell in cells), default=0)
    for cell in cells:
        aligned = f"{cell.value} {cell.spread.ljust(spread)}" if spread else _text(cell)
        yield aligned, STYLES[cell.tone]


def _text(cell: Cell) -> str:
    if not isinstance(cell, Picture):
        return text_of(cell)
    from dsv4kv.view.sparks import spark_bar, spark_line, spark_shape  # with numpy

    match cell:
        case Bar(share):
            return spark_bar(share, _BAR)
        case Spark(values):
            return spark_line(values, _SPARK)
        case Histogram(samples):
            return spark_shape(samples, _HISTOGRAM)
    raise TypeError(cell)


def _draw_table(table: Table, width: int) -> Iterator[Line]:
    yield from _draw_title(table, width)
    cells = zip(*table.cells, strict=True) if table.cells else repeat(())
    pairs = zip(table.heads, cells, strict=False)
    columns = [_Column(column, list(_align(listed))) for column, listed in pairs]
    parts, listed = _split(columns, table.keys, width)
    for number, part in enumerate(parts):
        if number:
            yield []
        yield from _draw_columns(part, width, len(table.rows))
    if listed:
        yield from [[]] if parts else []
        yield from _draw_lists(listed, table.keys if parts else 0, width)
    if table.caption:
        yield from ([(line, STYLES["dim"])] for line in wrap(table.caption, width))


def _draw_title(table: Table, width: int) -> Iterator[Line]:
    title = f"{table.title}  {table.note}".rstrip()
    if title and cell_len(title) <= width:
        yield [(table.title, STYLES["strong"]), (title[len(table.title) :], STYLES["dim"])]
    elif title:
        yield from ([(line, STYLES["strong"])] for line in wrap(table.title, width))
        yield from ([(line, STYLES["dim"])] for line in wrap(table.note, width) if line)


def _split(
    columns: Sequence[_Column], keys: int, width: int
) -> tuple[list[list[_Column]], list[_Column]]:
    """Columns of tables below each other, and those that only lists have room for."""
    if _widths(columns, width) is not None:
        return [list(columns)], []
    head = list(columns[:keys])
    rest = [each for each in columns[keys:] if _widths([*head, each], width) is not None]
    if not rest:
        return [], list(columns)
    listed = [each for each in columns[keys:] if each not in rest]
    rest.sort(key=lambda each: each.column.minor)
    parts = []
    while rest:
        counts = range(len(rest), 0, -1)
        count = next(n for n in counts if _widths([*head, *rest[:n]], width) is not None)
        parts.append([each for each in columns if each in head or each in rest[:count]])
        rest = rest[count:]
    return parts, [*head, *listed] if listed else []


def _widths(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Widths of columns: of the first way to set them that has room; None where none has."""
    room = width - _GAP * (len(columns) - 1)
    for header, whole in ((0, True), (1, True), (1, False), (2, False)):
        needed = [max(c.width if whole else c.least, c.header_widths[header]) for c in columns]
        if sum(needed) <= room:
            return _widen(columns, needed, room)
    return None


def _widen(columns: Sequence[_Column], widths: list[int], room: int) -> list[int]:
    """Sentences get what room is left, in equal shares as far as they need it."""
    wanting = sorted(range(len(columns)), key=lambda n: columns[n].width - widths[n])
    wanting = [n for n in wanting if columns[n].width > widths[n]]
    for number, n in enumerate(wanting):
        share = (room - sum(widths)) // (len(wanting) - number)
        widths[n] += min(share, columns[n].width - widths[n])
    return widths


def _draw_columns(columns: Sequence[_Column], width: int, body: int) -> Iterator[Line]:
    """Header, rule, so many rows, and the others below a blank line."""
    if not (widths := _widths(columns, width)):
        return
    heads = [
        wrap(each.column.header, w, _AT_BLANKS) for each, w in zip(columns, widths, strict=True)
    ]
    tallest = max(map(len, heads))
    headers = [("\n" * (tallest - len(h)) + "\n".join(h), STYLES["dim"]) for h in heads]
    yield from _draw_row(columns, headers, widths)
    yield [("─" * (sum(widths) + _GAP * (len(widths) - 1)), STYLES["dim"])]
    for number, row in enumerate(zip(*(each.cells for each in columns), strict=True)):
        if number == body:
            yield []
        yield from _draw_row(columns, row, widths)


def _draw_row(
    columns: Sequence[_Column], row: Sequence[Piece], widths: Sequence[int]
) -> Iterator[Line]:
    """As many lines as the cell with the most."""
    cells = [wrap(text, width) for (text, _), width in zip(row, widths, strict=True)]
    for texts in zip_longest(*cells, fillvalue=""):
        line: Line = []
        for each, (_, style), text, width in zip(columns, row, texts, widths, strict=True):
            parts = [(" " * (width - cell_len(text)), ""), (text, style)]
            line += parts if each.column.kind == "number" else reversed(parts)
            line.append((" " * _GAP, ""))
        while line and not line[-1][0].strip():
            line.pop()
        yield line


def _draw_lists(columns: Sequence[_Column], keys: int, width: int) -> Iterator[Line]:
    """Rows as ``header: value`` lines; those that say nothing next to their names are left out."""
    rows = zip(*(each.cells for each in columns), strict=True)
    filled = (row for row in rows if any(text.strip() for text, _ in row[keys:]))
    for number, row in enumerate(filled):
        if number:
            yield []
        for each, (text, style) in zip(columns, row, strict=True):
            if text.strip():
                yield from _draw_value(each.column, text.rstrip(), style, width)


def _draw_value(column: Column, text: str, style: str, width: int) -> Iterator[Line]:
    label = f"{column.header}: " if column.header else ""
    if cell_len(label + text) <= width and "\n" not in text:
        yield [(label, STYLES["dim"]), (text, style)]
        return
    yield from ([(line, STYLES["dim"])] for line in wrap(label.rstrip(), width))
    widest = _longest(text) if column.kind == "prose" else cell_len(text)
    indent = _GAP if widest + _GAP <= width else 0
    for line in wrap(text, width - indent):
        yield [(" " * indent, ""), (line, style)]
