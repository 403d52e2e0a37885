"""Parts on a terminal, drawn by rich."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
_GAP: Final = 2  # blanks between columns
_NARROWEST: Final = 24  # a narrower column of sentences is hard to read
_SHORT_NAME = 32  # no column of names is cut below it


def show(parts: Iterable[tb.Part], console: "Console | None" = None) -> None:
    """Print parts below each other, on standard output unless another console is given."""
    console = console or open_console()
    for part in parts:
        console.print(Drawing(part), crop=False, end="")


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
                    yield Segment(text if number < len(line) else text.rstrip(), style)
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
    return RichText(one_line(text), style)


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
    title = RichText(one_line(table.title), "bold")
    if table.note:
        title.append(f"  {one_line(table.note)}", "dim not bold")
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
    return RichText(one_line(text), STYLES[cell.tone])


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
