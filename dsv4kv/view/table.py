"""Tables, facts and findings as data, which a terminal, a page, Markdown and CSV render.

A command's view is a list of parts, the answer first::

    yield Finding("good", "8 requests of 128K fit on one H200")
    yield Table(
        "Requests",
        [
            ("request", lambda r: r.name),
            ("prompt tokens", lambda r: quantity(r.prompt_tokens)),
            ("TPOT p99 ms", lambda r: ms(r.tpot.p99)),
        ],
        requests,
    )
    yield Command("vllm serve deepseek-ai/DeepSeek-V4-Flash")

``dsv4kv.view.quantity`` formats cells, ``dsv4kv.view.plots`` draws charts. A command with details
makes a ``Page`` of its answer and sections: ``dsv4kv.view.render.show`` prints ``page.answer``, or
``page.in_full()`` with ``--verbose``, and ``dsv4kv.view.html.write_page`` writes all of it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = 12) -> Text:
    """A bar of at most ``width`` characters for a share from 0 to 1."""
    whole, eighths = divmod(round(max(0.0, min(1.0, share)) * width * 8), 8)
    return Text("█" * whole + _EIGHTHS[eighths].strip())


Cell = Text | Number | Mark
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


Read = Callable[[Any], Cell | str]
"""Reads a column's cell from a row."""

_NUMERIC = re.compile(r"[-+−~<>≤≥×]?\d[\d,.]*(?:[KMGT]|%| [^×]*)?")
_SENTENCE = 28  # letters: a longer text with blanks may be wrapped


@dataclass(frozen=True)
class Table:
    """A table: a row for each item, and a column for each quantity.

    A column is its header, with the unit, and a function that reads its cell from a row. Where
    rows are cells already, a column is the header alone. Numbers are right-aligned and never
    broken; texts are wrapped between words. The most important columns come first: those without
    room on a narrow terminal go to a second table below, next to the same keys.

    Attributes:
        title: What it contains.
        columns: From left to right.
        rows: Items for the columns' functions, or sequences of cells.
        note: What to know before reading it, in a few words.
        footer: More rows, below a line: a sum, or what the others are compared with.
        caption: What to know after reading it.
        keys: Number of leading columns that name a row.
    """

    title: str
    columns: Sequence["Column | tuple[str, Read] | str"]
    rows: Sequence[Any]
    note: str = ""
    footer: Sequence[Any] = ()
    caption: str = ""
    keys: int = 1

    def __post_init__(self) -> None:
        odd = [len(row) for row in self.cells if len(row) != len(self.columns)]
        if odd:
            raise ValueError(f"{self.title}: {odd[0]} cells for {len(self.columns)} columns")

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """Cells of all rows, those of the footer last."""
        readers = [column[1] for column in self.columns if isinstance(column, tuple)]
        return [
            [Text(cell) if isinstance(cell, str) else cell for cell in row]
            for row in (
                [read(item) for read in readers] if readers else item
                for item in (*self.rows, *self.footer)
            )
        ]

    @cached_property
    def heads(self) -> list["Column"]:
        """Header and kind of every column."""
        return [self._head(number, column) for number, column in enumerate(self.columns)]

    def _head(self, number: int, column: "Column | tuple[str, Read] | str") -> "Column":
        if isinstance(column, Column):
            return column
        header = column if isinstance(column, str) else column[0]
        cells = [row[number] for row in self.cells]
        texts = [cell.value for cell in cells if cell.value not in ("", ABSENT)]
        if any(isinstance(cell, Number) for cell in cells) or (
            texts and all(map(_NUMERIC.fullmatch, texts))
        ):
            return Column(header, "number")
        is_prose = any(len(text) > _SENTENCE and " " in text for text in texts)
        return Column(header, "prose" if is_prose else "name")

    def noted(self, what: str) -> "Table":
        """The table with this in front of its note; itself if it is empty."""
        return replace(self, note="; ".join(filter(None, (what, self.note)))) if what else self

    def informative(self) -> "Table":
        """The table without columns that have no value; one without rows keeps all."""
        columns = list(zip(*self.cells, strict=True))
        kept = [
            number
            for number, column in enumerate(columns)
            if any(text_of(cell) not in ("", ABSENT) for cell in column)
        ]
        if len(kept) == len(columns):
            return self
        cells = [[row[n] for n in kept] for row in self.cells]
        keys = sum(number < self.keys for number in kept)
        body = len(self.rows)
        return replace(
            self,
            columns=[self.heads[n] for n in kept],
            rows=cells[:body],
            footer=cells[body:],
            keys=keys,
        )


def tabulate(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Raw values by name: a column for every name; what a row has none of is empty."""
    headers = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else str(row[name]) for name in headers] for row in rows]
    return Table("", names(*headers), cells)


class Command(str):
    """What a user may paste into a shell: a part of its own, or a fact."""


@dataclass(frozen=True)
class Facts:
    """Facts by label; a ``Command`` is broken where a shell takes it up again."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """A sentence and how good the news is."""

    level: Level
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


@dataclass(frozen=True)
class Chart:
    """A plot; a terminal leaves it out.

    Attributes:
        title: What is shown, with its unit; the figure does not repeat it.
        description: What can be read from it, for those who cannot see it.
        draw: Draws it; matplotlib is imported then.
    """

    title: str
    description: str
    draw: Callable[[], "Figure"]


Part = Table | Facts | Finding | Stack | Chart | Text | str
"""What a view is made of; an empty string is a blank line."""


@dataclass(frozen=True)
class Section:
    """Details of an answer.

    Attributes:
        heading: The question it answers.
        parts: Tables, charts, facts and sentences, in their order.
        note: How to read it.
        level: Of the heading: 2, or 3 below the heading of a run.
    """

    heading: str
    parts: Sequence[Part] = ()
    note: str = ""
    level: int = 2


@dataclass(frozen=True)
class Page:
    """Everything that a command shows, on a terminal or as an HTML page.

    Attributes:
        title: Model, engine, GPU, trace: what it is about; a terminal does not print it.
        answer: What it comes to: a sentence, the table that carries it, a line to paste. It is
            all that a terminal prints without ``--verbose``.
        sections: Everything else.
    """

    title: str
    answer: Sequence[Part]
    sections: Sequence[Section] = ()

    def charts(self) -> list[Chart]:
        """Every chart, in the order of the page."""
        parts = [*self.answer, *(part for section in self.sections for part in section.parts)]
        return [part for part in parts if isinstance(part, Chart)]

    def in_full(self) -> Iterator[Part]:
        """The answer and all sections as parts, for a terminal."""
        yield from self.answer
        for section in self.sections:
            yield from ("", Text(section.heading, "strong"))
            if section.note:
                yield Text(section.note, "dim")
            for number, part in enumerate(section.parts):
                if number and isinstance(part, Table):
                    yield ""
                yield part
