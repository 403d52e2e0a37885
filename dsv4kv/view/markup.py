"""Tables for browsers, pull requests and other programs."""

import csv
import io
from dataclasses import dataclass
from typing import Final

from dsv4kv.view.table import ABSENT, Cell, Kind, Table, Tone, text_of

_CLASSES: Final[dict[Tone, str]] = {
    "good": "good",
    "warning": "warning",
    "bad": "bad",
    "dim": "muted",
}
_KINDS: Final[dict[Kind, str]] = {"name": "", "number": "n", "prose": "p"}


@dataclass(frozen=True)
class HtmlColumn:
    """What a page's template asks of a column: the class of its kind; intervals have own cells."""

    header: str
    look: str
    has_spread: bool


@dataclass(frozen=True)
class HtmlTable:
    """A table as a page's template takes it.

    Attributes:
        columns: From left to right, without those that say nothing, and pictures.
        rows: Cells of every row.
        looks: Classes of tones.
        ruled: Number of the row after which a line is drawn; -1 for none.
        keys: So many cells at the start of a row name it.
    """

    columns: list[HtmlColumn]
    rows: list[list[Cell]]
    looks: dict[Tone, str]
    ruled: int
    keys: int


def to_html(table: Table) -> HtmlTable:
    """The parts of a table that a page shows; pictures are left out, as a page has charts."""
    shown = table.informative()
    return HtmlTable(
        [
            HtmlColumn(
                column.header,
                _KINDS[column.kind],
                any(row[number].spread for row in shown.cells),
            )
            for number, column in enumerate(shown.heads)
        ],
        shown.cells,
        _CLASSES,
        len(shown.rows) - 1 if shown.footer else -1,
        shown.keys,
    )


def to_markdown(table: Table) -> str:
    """The table's rows; what is absent is empty."""
    rules = ("---:" if column.kind == "number" else "---" for column in table.heads)
    lines = [[column.header for column in table.heads]]
    lines += [[_markdown(cell) for cell in row] for row in table.cells]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, f"|{'|'.join(rules)}|", *body])


def _markdown(cell: Cell) -> str:
    text = text_of(cell)
    return "" if text == ABSENT else " ".join(text.replace("|", "\\|").split("\n"))


def to_csv(table: Table) -> str:
    """The table with a header line; an interval is in its cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.header for column in table.heads])
    writer.writerows([text_of(cell) for cell in row] for row in table.cells)
    return file.getvalue()
