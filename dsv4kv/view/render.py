"""Parts on a terminal, drawn by rich, and tables as Markdown and CSV."""

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final

from rich import box
from rich.box import Box
from rich.cells import cell_len
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text as RichText

from dsv4kv.units import counted
from dsv4kv.view import table as tb
from dsv4kv.view.console import one_line, open_console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

STYLES: Final[dict[tb.Tone, str]] = {
    "plain": "",
    "strong": "bold",
    "dim": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "red",
}
# box.SIMPLE_HEAD, which rich would draw with | where a terminal is not UTF-8
_RULE: Final = Box(str(box.SIMPLE_HEAD), ascii=True)
_NO_BREAK: Final = "\ue000"
"""A blank at which rich breaks no line."""
_GAP: Final = 2  # blanks between columns
_NARROWEST: Final = 24  # a narrower column of sentences is hard to read
_SHORT_NAME = 32  # no column of names is cut below it
# before a unit and within an interval no line is broken
_WITHIN_QUANTITY: Final = re.compile(
    r"(?<=[±…→]) | (?=[±…→%]|-[\d.,]+/\+|(?:[KMGT]?i?B|GB/s|tokens/s|ns|µs|ms|s)\b)"
)


def show(
    parts: Iterable[tb.Part],
    console: "Console | None" = None,
    *,
    cut: bool = False,
    below: int = 0,
    heads: Collection[int] = (),
) -> None:
    """Print parts below each other, on standard output unless another console is given.

    With ``cut`` what is no answer gives way until all and ``below`` lines more fill a screen.
    ``heads``: positions of several answers, which stay; their commands give way last.
    """
    console = console or open_console()
    for part in _cut(list(parts), console, below, heads) if cut else parts:
        console.print(Drawing(part), crop=False, end="")


def _cut(
    parts: list[tb.Part], console: "Console", below: int, heads: Collection[int]
) -> list[tb.Part]:
    """The parts without what matters least, and how many lines of them are not shown."""
    screen = 25 if console.width >= 100 else 30 * 80 // min(80, console.width)
    heights, lost, place = [_height(part, console) for part in parts], 0, 0
    note: list[tb.Part] = ["", ""] if heads else [""]
    cuttable = [n for n in reversed(range(1, len(parts))) if n not in heads]
    for importance, n in product(range(_DETAIL, _COMMAND + bool(heads)), cuttable):
        over, part = sum(heights) + len(note) * (lost > 0) + below - screen, parts[n]
        if over <= 0:
            break
        if isinstance(part, tb.Table) and importance in (_DETAIL, _ROWS, _BEST_ROW):
            parts[n] = part = replace(part, caption="")
            if importance > _DETAIL:
                least = _FEW_ROWS if importance == _ROWS else 1
                parts[n] = _fewer_rows(part, heights[n] - over, console, least)
            heights[n] = _height(parts[n], console)
        elif isinstance(part, tb.Facts) and importance == _FACTS and len(part.rows) > 1:
            parts[n] = part = _fewer_facts(part, heights[n] - over - (lost == 0), console)
            lost, place = lost + heights[n] - _height(part, console), n
            heights[n] = _height(part, console)
        elif heights[n] and _importance(parts, n) == importance:
            for each in (n, *_title(parts, n)):
                lost, heights[each] = lost + heights[each], 0
            place = n
            _close_gap(parts, heights, n)
    kept = [part for part, height in zip(parts, heights, strict=True) if height]
    if lost:
        at = len(kept) if heads else sum(height > 0 for height in heights[:place])
        note[-1] = tb.Text(f"and {counted(lost, 'more line')}: --verbose", "dim")
        kept[at:at] = note
    return kept


def _title(parts: Sequence[tb.Part], n: int) -> Iterator[int]:
    """The line above a command, or above the first quoted line."""
    kind = _importance(parts, n)
    quoted = kind == _QUOTES and _importance(parts, n - 1) == _HEADS
    yield from [n - 1] * (quoted or (kind == _COMMAND and parts[n - 1] != ""))


def _close_gap(parts: Sequence[tb.Part], heights: list[int], n: int) -> None:
    """Drop the blank line above a part that is cut, unless it still parts two others."""
    above = next(each for each in reversed(range(n)) if heights[each])
    under = next((each for each in range(n, len(parts)) if heights[each]), above)
    if parts[above] == parts[under] == "":
        heights[above] = 0


_DETAIL, _ROWS, _FACTS, _SENTENCES, _BEST_ROW, _TABLES = range(6)
_GOOD, _QUOTES, _HEADS, _ANSWER, _COMMAND = range(6, 11)
"""Parts of an answer that is more than a screen, in the order in which they give way."""
_FEW_ROWS: Final = 3


def _importance(parts: Sequence[tb.Part], n: int) -> int | None:
    """None for a blank line and the line above a command, which are cut with what is below."""
    part, found = parts[n], _ANSWER
    if isinstance(part, tb.Command):
        return _COMMAND
    if part == "" or any(isinstance(each, tb.Command) for each in parts[n + 1 : n + 2]):
        return None
    match part:
        case tb.Text(tone="dim"):
            found = _HEADS if part.value.endswith(":") else _DETAIL
        case str():
            found = _QUOTES if part.startswith("  ") else _SENTENCES
        case tb.Finding(level="good" | "note"):
            found = _GOOD
        case tb.Table() | tb.Facts():
            found = _TABLES
    return found


def _fewer_rows(table: tb.Table, height: int, console: "Console", least: int) -> tb.Table:
    """The table cut to ``height`` lines, if that leaves it the ``least`` rows."""
    rows = len(table.rows)
    while rows > least and _height(table.first(rows), console) > height:
        rows -= 1
    fewer = table.first(rows)
    return fewer if _height(fewer, console) < _height(table, console) else table


def _fewer_facts(facts: tb.Facts, height: int, console: "Console") -> tb.Facts:
    """The last of the facts, at least one, in no more than ``height`` lines if they can."""
    rows = list(facts.rows.items())
    while len(rows) > 1 and _height(tb.Facts(dict(rows)), console) > height:
        del rows[0]
    return tb.Facts(dict(rows))


def _height(part: tb.Part, console: "Console") -> int:
    return len(console.render_lines(Drawing(part), pad=False))


@dataclass(frozen=True)
class Drawing:
    """A part as rich draws it; where a console does not wrap, it is as wide as it needs to be."""

    part: tb.Part

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        width = 10**4 if options.no_wrap else options.max_width
        for drawn in _draw(self.part, width):
            wide = drawn.width if isinstance(drawn, RichTable) and drawn.width else 0
            if isinstance(drawn, RichText) and drawn.no_wrap:
                wide = drawn.cell_len
            wider = options.update(width=max(width, wide), no_wrap=None)
            for line in console.render_lines(drawn, wider, pad=False):
                while line and not line[-1].text.strip():
                    line.pop()
                for number, (text, style, _) in enumerate(line, 1):
                    shown = text.replace(_NO_BREAK, " ")
                    yield Segment(shown if number < len(line) else shown.rstrip(), style)
                yield Segment.line()


def _draw(part: tb.Part, width: int) -> "Iterator[RenderableType]":
    match part:
        case tb.Table():
            yield from _draw_table(part.informative(), width)
        case tb.Facts():
            label = max(8, *map(cell_len, part.rows), 0)
            for name, fact in part.rows.items():
                yield _hang(RichText(name, "dim"), fact, "", label)
        case tb.Finding():
            sign, tone = tb.MARKS[part.level]
            yield _hang(RichText(sign, STYLES[tone]), part.sentence, STYLES[tone], 1, gap=1)
        case tb.Text():
            yield _sentence(part.value, STYLES[part.tone])
        case str() if part.startswith("  ") and part.strip():
            yield _hang(RichText(), part.lstrip(), "", len(part) - len(part.lstrip()), gap=0)
        case str():
            yield _sentence(part)


def _sentence(text: str, style: str = "") -> RichText:
    if isinstance(text, tb.Command):
        return RichText(text, style, no_wrap=True, overflow="ignore")
    return RichText(_unbroken(text), style)


def _unbroken(text: str) -> str:
    return _WITHIN_QUANTITY.sub(_NO_BREAK, one_line(text))


def _hang(head: RichText, text: str, style: str, width: int, gap: int = _GAP) -> RichTable:
    grid = RichTable.grid(padding=(0, gap, 0, 0))
    grid.add_column(width=width)
    grid.add_column(overflow="fold", no_wrap=isinstance(text, tb.Command))
    if isinstance(text, tb.Command):  # whole, so that it can be pasted: a terminal wraps it
        grid.width = width + gap + cell_len(text)
    grid.add_row(head, _sentence(text, style))
    return grid


def _draw_table(table: tb.Table, width: int) -> "Iterator[RenderableType]":
    """The table; columns without room are dropped, or below it, next to the same keys."""
    columns = [_Column.of(table, number) for number in range(len(table.heads))]
    keys, rest = columns[: table.keys], columns[table.keys :]
    dropped = 0
    while table.rest and len(rest) > 1 and _needed([*keys, *rest]) > width:
        rest.remove(next((each for each in rest if each.header in table.least), rest[-1]))
        dropped += 1
    counts = {"more row": table.hidden, "more column": dropped}
    words = " and ".join(counted(count, what) for what, count in counts.items() if count)
    hint = f"{words}: {table.rest}" if words and table.rest else ""
    noted = replace(table, note="; ".join(filter(None, (table.note, hint))))
    if cell_len(f"{noted.title}  {noted.note}") <= width and table.title:
        table, hint = noted, ""
    title = RichText(_unbroken(table.title), "bold")
    if table.note:
        title.append(f"  {_unbroken(table.note)}", "dim not bold")
    if title:
        yield title
    while True:
        count = len(rest)
        while count > 1 and _needed([*keys, *rest[:count]]) > width:
            count -= 1
        yield _draw_columns([*keys, *rest[:count]], width, len(table.rows))
        rest = rest[count:]
        if not rest:
            break
        yield ""
    if hint:
        yield _sentence(f"and {hint}", "dim")
    for line in table.caption.splitlines():
        yield _sentence(line, "dim")


@dataclass(frozen=True)
class _Column:
    """A column as it is drawn: its cells, and how narrow and how wide it may be."""

    header: str
    kind: str
    cells: Sequence[RichText]
    least: int
    most: int

    @classmethod
    def of(cls, table: tb.Table, number: int) -> "_Column":
        head, cells = table.heads[number], [row[number] for row in table.cells]
        spread = max((cell_len(cell.spread) for cell in cells), default=0)
        texts = [_text(cell, spread) for cell in cells]
        whole = max((cell_len(text.plain) for text in texts), default=0)
        words = " ".join(text.plain for text in texts).split(" ")
        longest = max(map(cell_len, words))
        least = min(whole, max(longest, _NARROWEST)) if head.kind == "prose" else whole
        header = max(map(cell_len, head.header.split(" ")))
        return cls(head.header, head.kind, texts, max(least, header),
                   max(whole, cell_len(head.header)))  # fmt: skip


def _text(cell: tb.Cell, spread: int) -> RichText:
    """A cell's text; intervals are padded, so that values are one below the other."""
    text = f"{cell.value} {cell.spread:{spread}}" if spread else cell.value
    return RichText(_unbroken(text), STYLES[cell.tone])


def _needed(columns: Sequence[_Column]) -> int:
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)


def _draw_columns(columns: Sequence[_Column], width: int, body: int) -> RichTable:
    widths = [column.least for column in columns]
    room = width - _needed(columns)
    for n in sorted(range(len(columns)), key=lambda n: -widths[n]) if room < 0 else ():
        if columns[n].kind != "number":  # a name may be cut into lines, a number may not
            less = max(0, min(widths[n] - _SHORT_NAME, -room))
            widths[n] -= less
            room += less
    wanting = sorted(range(len(columns)), key=lambda n: columns[n].most - columns[n].least)
    for count, n in zip(range(len(columns), 0, -1), wanting, strict=True):
        more = max(0, min(columns[n].most - widths[n], room // count))
        widths[n] += more
        room -= more
    drawn = RichTable(
        box=_RULE,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        border_style="dim",
        width=sum(widths) + _GAP * (len(widths) - 1),
    )
    for column, least in zip(columns, widths, strict=True):
        drawn.add_column(
            column.header,
            width=least,
            justify="right" if column.kind == "number" else "left",
            overflow="fold",
            header_style="dim",
        )
    for number, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if number == body:
            drawn.add_section()
        drawn.add_row(*row)
    return drawn


def markdown_text(text: str) -> str:
    """A text on one line in which nothing is a tag, a link or a picture."""
    return " ".join(text.split("\n")).replace("<", "&lt;").replace("](", "]\\(")


def to_markdown(table: tb.Table) -> str:
    """The table's rows; an absent value is empty."""

    def text(cell: tb.Cell) -> str:
        shown = "" if tb.text_of(cell) == tb.ABSENT else tb.text_of(cell)
        return markdown_text(shown).replace("|", "\\|")

    table = table.informative()
    rules = ("---:" if head.kind == "number" else "---" for head in table.heads)
    lines = [
        [head.header for head in table.heads],
        *([text(c) for c in row] for row in table.cells),
    ]
    first, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, f"|{'|'.join(rules)}|", *body])


def to_csv(table: tb.Table) -> str:
    """The table with a header line; an interval is in its cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([head.header for head in table.heads])
    writer.writerows([tb.text_of(cell) for cell in row] for row in table.cells)
    return file.getvalue()
