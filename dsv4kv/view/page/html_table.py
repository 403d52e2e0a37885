"""The terminal's tables as parts of a page: the same numbers, made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dsv4kv.view.sparks import is_picture

_PLUS_MINUS: Final = " ± "
_CLASSES: Final = {"green": "good", "yellow": "warning", "red": "bad", "dim": "muted"}


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the half-width of an interval beside it, and how it looks."""

    text: str
    spread: str = ""
    look: str = ""


@dataclass(frozen=True)
class Column:
    """A column: its header, whether it holds numbers, and whether any has an interval."""

    header: str
    is_number: bool
    has_spread: bool


@dataclass(frozen=True)
class HtmlTable:
    """A table as the page's template takes it.

    Attributes:
        key: Its id on the page.
        caption: What it holds.
        note: What to know when reading it.
        columns: From left to right.
        rows: Cells of every row.
        names: So many cells at the start of a row name it.
        ruled: Rows after which a line is drawn.
    """

    key: str
    caption: str
    note: str
    columns: list[Column]
    rows: list[list[Cell]]
    names: int
    ruled: frozenset[int]


def convert_table(table: Table, key: str, names: int = 1, note: str = "") -> HtmlTable:
    """A rich table of the house, as ``new_table`` makes it, but for columns without any words.

    Small pictures of characters are for the terminal: a page has charts. ``note`` is told beside
    the table's own.
    """
    named = zip(table.columns, _headers(table), strict=True)
    found = [(c, header, [_cell(cell) for cell in c.cells]) for c, header in named]
    kept = [each for each in found if not (each[2] and _is_drawn(each[2]))]
    caption, own = _heading(table)
    return HtmlTable(
        key=key,
        caption=caption,
        note="; ".join(filter(None, (own, note))),
        columns=[
            _column(header, column.justify == "right", cells) for column, header, cells in kept
        ],
        rows=[list(row) for row in zip(*(cells for *_, cells in kept), strict=True)],
        names=names,
        ruled=frozenset(n for n, row in enumerate(table.rows) if row.end_section),
    )


def convert_facts(grid: Table) -> dict[str, str]:
    """A grid of labels and facts, as ``facts.header`` makes it."""
    labels, facts = ([_plain(cell) for cell in column.cells] for column in grid.columns)
    return dict(zip(labels, facts, strict=True))


def _is_drawn(cells: Sequence[Cell]) -> bool:
    return all(is_picture(cell.text) for cell in cells)


def _headers(table: Table) -> list[str]:
    """Headers; the marks and words at the end of a row have none on a terminal."""
    names = iter(("state", "why"))
    return [_plain(column.header) or next(names, "") for column in table.columns]


def _heading(table: Table) -> tuple[str, str]:
    caption, _, note = _plain(table.title or "").partition("  ")
    return caption, note


def _column(header: str, is_right: bool, cells: Sequence[Cell]) -> Column:
    has_spread = any(cell.spread for cell in cells)
    return Column(" ".join(header.split()), is_right or has_spread, has_spread)


def _cell(cell: RenderableType) -> Cell:
    colours = str(cell.style).split() if isinstance(cell, Text) else []
    look = next((_CLASSES[colour] for colour in colours if colour in _CLASSES), "")
    text, sign, spread = _plain(cell).strip().partition(_PLUS_MINUS)
    return Cell(text.strip(), f"± {spread}" if sign else "", look)


def _plain(part: object) -> str:
    return part.plain if isinstance(part, Text) else str(part)
