"""What is shown, as data: a terminal, a page, Markdown and CSV render the same tables.

Nothing here knows widths, colours or blanks; a renderer decides those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

ABSENT = "–"

Tone = Literal["plain", "strong", "dim", "good", "warning", "bad"]
Level = Literal["good", "note", "missing", "warning", "bad"]
Kind = Literal["name", "number", "prose"]
"""Names and numbers are never broken over lines; prose is, between words."""

MARKS: dict[Level, tuple[str, Tone]] = {
    "good": ("✓", "good"),
    "note": ("·", "dim"),
    "missing": ("–", "warning"),
    "warning": ("!", "warning"),
    "bad": ("✗", "bad"),
}


@dataclass(frozen=True)
class Text:
    """Words, as a cell or as a line of their own."""

    value: str
    tone: Tone = "plain"
    spread: ClassVar[str] = ""


@dataclass(frozen=True)
class Number:
    """A value with its digits and unit, and its interval: ``± 0.05``, ``-0.03/+0.11``, ``± ?``."""

    value: str
    spread: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Mark:
    """What became of something: a sign that needs no colour, and words if need be."""

    level: Level
    words: str = ""
    spread: ClassVar[str] = ""

    @property
    def value(self) -> str:
        """The sign and the words."""
        return f"{MARKS[self.level][0]} {self.words}".rstrip()

    @property
    def tone(self) -> Tone:
        """How good the news is."""
        return MARKS[self.level][1]


@dataclass(frozen=True)
class Picture:
    """Numbers that a terminal draws with characters; elsewhere a cell without words."""

    value: ClassVar[str] = ""
    spread: ClassVar[str] = ""
    tone: ClassVar[Tone] = "plain"


@dataclass(frozen=True)
class Bar(Picture):
    """A share of a whole, from 0 to 1."""

    share: float


@dataclass(frozen=True)
class Spark(Picture):
    """Values in order."""

    values: Sequence[float]


@dataclass(frozen=True)
class Histogram(Picture):
    """How samples are distributed."""

    samples: Sequence[float]


Cell = Text | Number | Mark | Picture
Row = Sequence[Cell | str]
"""Cells of a row; a string is plain text."""


def text_of(cell: Cell) -> str:
    """Everything that a cell says."""
    return f"{cell.value} {cell.spread}" if cell.spread else cell.value


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        header: What heads it, with the unit.
        kind: What its cells are.
        minor: Whether it goes to a second table before others do, where there is no room.
    """

    header: str
    kind: Kind
    minor: bool = False


def names(*headers: str, minor: bool = False) -> list[Column]:
    """Columns of names and identifiers: flush left, and whole."""
    return [Column(header, "name", minor) for header in headers]


def numbers(*headers: str, minor: bool = False) -> list[Column]:
    """Columns of numbers: flush right, and whole."""
    return [Column(header, "number", minor) for header in headers]


def prose(*headers: str, minor: bool = False) -> list[Column]:
    """Columns of sentences."""
    return [Column(header, "prose", minor) for header in headers]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it holds.
        columns: From left to right.
        rows: As many cells in each as there are columns.
        note: What to know before reading it.
        footer: Rows below a line: what the others are compared with, or all of them together.
        caption: What to know after reading it.
        keys: So many columns at the start name a row.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    footer: Sequence[Row] = ()
    caption: str = ""
    keys: int = 1

    def __post_init__(self) -> None:
        odd = [len(row) for row in (*self.rows, *self.footer) if len(row) != len(self.columns)]
        if odd:
            raise ValueError(f"{self.title}: {odd[0]} cells for {len(self.columns)} columns")

    @property
    def cells(self) -> list[list[Cell]]:
        """Cells of all rows, those of the footer last."""
        return [
            [Text(cell) if isinstance(cell, str) else cell for cell in row]
            for row in (*self.rows, *self.footer)
        ]

    def noted(self, what: str) -> "Table":
        """The table with this in front of its note; itself if it is empty."""
        return replace(self, note="; ".join(filter(None, (what, self.note)))) if what else self

    def informative(self, *, pictures: bool) -> "Table":
        """The table without columns that say nothing; one without rows keeps all.

        ``pictures``: whether they can be seen.
        """
        columns = list(zip(*self.cells, strict=True))
        kept = [
            number
            for number, column in enumerate(columns)
            if any(cell.value or (pictures and isinstance(cell, Picture)) for cell in column)
        ]
        if len(kept) == len(columns):
            return self
        rows, footer = (
            [[row[n] for n in kept] for row in part] for part in (self.rows, self.footer)
        )
        keys = sum(number < self.keys for number in kept)
        return replace(
            self, columns=[self.columns[n] for n in kept], rows=rows, footer=footer, keys=keys
        )


def tabulate(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Raw values by name: a column for every name; what a row has none of is empty."""
    headers = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else str(row[name]) for name in headers] for row in rows]
    return Table("", names(*headers), cells)


class Command(str):
    """What a user may paste into a shell."""


@dataclass(frozen=True)
class Facts:
    """Facts by label; a ``Command`` is broken where a shell takes it up again."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """A sentence and how good the news is."""

    level: Literal["good", "note", "warning", "bad"]
    sentence: str

    @property
    def is_problem(self) -> bool:
        """Whether it is shown even when little else is."""
        return self.level in ("warning", "bad")


@dataclass(frozen=True)
class StackPart:
    """A part of a stack: the character it is drawn with, what it is, and its size."""

    sign: str
    words: str
    size: str
    share: float


@dataclass(frozen=True)
class Stack:
    """Parts of a whole as one bar, and what its characters mean."""

    label: str
    parts: Sequence[StackPart]
    whole: str


Part = Table | Facts | Finding | Stack | Text | str
"""What a view is made of, from the top down."""
