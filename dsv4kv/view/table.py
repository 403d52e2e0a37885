"""Tables, facts and findings as data, which a terminal and a page render.

A command's view is a ``Page``: its answer, a list of parts, and sections with the details.
``dsv4kv.view.render.show`` prints ``page.parts(verbose=…)``;
``dsv4kv.view.html.write_page`` writes all of it.
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from dsv4kv.units import format_bytes, format_count
from dsv4kv.view.console import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dsv4kv.runs.statistics import Estimate

ABSENT = "–"

Tone = Literal["plain", "strong", "dim", "good", "warning", "bad"]
Level = Literal["good", "note", "missing", "warning", "bad"]

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


Cell = Text | Number


def mark(level: Level, words: str = "") -> Text:
    """A sign that needs no colour for how something ended, and words if need be."""
    sign, tone = MARKS[level]
    return Text(f"{sign} {words}".rstrip(), tone)


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float) -> Text:
    """A bar of at most 12 characters for a share from 0 to 1."""
    whole, eighths = divmod(round(max(0.0, min(1.0, share)) * 12 * 8), 8)
    return Text("█" * whole + _EIGHTHS[eighths].strip())


def text_of(cell: Cell) -> str:
    return f"{cell.value} {cell.spread}" if cell.spread else cell.value


# ---- quantities, with the digits that their uncertainty allows

_MAX_DIGITS = 5


def quantity(value: "Estimate | float | None", scale: float = 1.0) -> Number:
    """A cell of ``value * scale``; ``–`` for None.

    * an estimate: one or two digits of its 95 % interval, rounded
      up: ``12.41 ± 0.05``; ``12.41 -0.01/+0.05`` where one arm is over twice the other;
      ``12.4 ± ?`` where it is unknown (below six samples); ``<0.05`` where it reaches 0; no
      interval where it is exact
    * an integer without a scale: all digits
    * another number: three significant digits, or all before the point
    """
    if value is None:
        return Number(ABSENT)
    if isinstance(value, int) and scale == 1.0:
        return Number(f"{value:,}")
    if isinstance(value, int | float):
        return Number(number(value * scale))
    return _estimate(value, scale)


def _estimate(value: "Estimate", scale: float) -> Number:
    middle = value.value * scale
    if value.half_width is None:
        return Number(number(middle), "± ?")
    if value.half_width <= abs(value.value) * 1e-12:
        return Number(number(middle))
    spread = value.half_width * scale
    digits = -_exponent(spread) + (spread < 2 * 10.0 ** _exponent(spread))
    decimals = max(0, min(digits, _MAX_DIGITS - 1 - _exponent(middle)))
    interval = f"± {_round_up(spread, decimals)}"
    arms = value.arms if value.arms and value.is_lopsided else (value.half_width,) * 2
    below, above = (_round_up(arm * scale, decimals) for arm in arms)
    if middle > 0 and float(f"{middle:.{decimals}f}") <= float(below.replace(",", "")):
        return Number(f"<{_round_up(middle + arms[1] * scale, decimals)}")
    if value.arms and value.is_lopsided:
        interval = f"-{below}/+{above}"
    return Number(f"{middle:,.{decimals}f}", interval)


def us(nanoseconds: "Estimate | float | None") -> Number:
    """Nanoseconds as µs, without the unit."""
    return quantity(nanoseconds, 1e-3)


def ms(nanoseconds: "Estimate | float | None") -> Number:
    """Nanoseconds as ms, without the unit."""
    return quantity(nanoseconds, 1e-6)


def percent(share: "Estimate | float | None") -> Number:
    """A share of 1 as per cent to a tenth, without the sign; an estimate with its interval."""
    if isinstance(share, int | float):
        return Number(f"{share * 100:.1f}")
    return quantity(share, 100.0)


def size(count: float | None) -> Number:
    """Bytes with their binary unit."""
    return Number(ABSENT if count is None else format_bytes(count))


def format_quantity(value: "Estimate | float | None", scale: float = 1.0) -> str:
    """``12.41 ± 0.05``: the text of ``quantity``."""
    return text_of(quantity(value, scale))


def number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.{max(0, 2 - _exponent(value))}f}"


def clocked(value: float, factor: float | None) -> str:
    """A time of a model: two significant digits where it is right within a factor."""
    return number(value) if factor is None else f"{value:,.{max(0, 1 - _exponent(value))}f}"


def factor(factor: float | None) -> str:
    """``÷1.4 … ×1.4``: the 90 % error of a model's times."""
    return ABSENT if factor is None else f"÷{factor:g} … ×{factor:g}"


def share(part: int, whole: int, digits: int = 1) -> str:
    """``12.3%``: a part of a whole; ``–`` of nothing."""
    return f"{part / whole:.{digits}%}" if whole else ABSENT


def setting(path: str, value: Any) -> str:
    """A swept setting as people write it: sizes with their unit, contexts as ``128K``."""
    if path == "workload.context" and isinstance(value, int):
        return format_count(value)
    if path.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return value if isinstance(value, str) else json.dumps(value)


def _round_up(spread: float, decimals: int) -> str:
    unit = 10.0**decimals
    return f"{math.ceil(spread * unit - 1e-9) / unit:,.{decimals}f}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


# ---- tables


class Head(NamedTuple):
    """Header of a column, with its unit, and the kind of its cells."""

    header: str
    kind: Literal["name", "number", "prose"]


Read = Callable[[Any], Any]
"""Reads a column's cell from a row: a text, a number or an estimate; – for None."""
Column = tuple[str, Read]
"""Header of a column, and how to read its cells."""
Columns = Sequence[Column]

_NUMERIC = re.compile(r"[-+−~<>≤≥×]?\d[\d,.]*(?:[KMGT]|%| [^×]*)?")
_MAX_ROWS, _MAX_COLUMNS = 14, 10  # of a table of a page's answer
_SENTENCE = 28  # letters: a longer text with blanks may be wrapped


@dataclass(frozen=True)
class Table:
    """A table: a row for each item, and a column for each quantity.

    A column is its header, with the unit, and a function that reads its cell from a row. Where
    rows are cells already, a column is the header alone. The last columns without room
    on a narrow terminal are dropped if an option, ``rest``, shows them, else in a table below.
    """

    title: str
    columns: Sequence[Column | str]
    rows: Sequence[Any]
    note: str = ""  # next to the title
    footer: Sequence[Any] = ()  # more rows, below a line
    caption: str = ""  # below the table
    keys: int = 1  # number of leading columns that name a row
    rest: str = ""
    least: Sequence[str] = ()  # headers of the columns that are dropped before the last
    hidden: int = 0  # rows that are not in it, which ``rest`` shows
    most: int = 10  # rows of it in an answer on a terminal

    def __post_init__(self) -> None:
        odd = [len(row) for row in self.cells if len(row) != len(self.columns)]
        if odd:
            raise ValueError(f"{self.title}: {odd[0]} cells for {len(self.columns)} columns")

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """Cells of all rows; the footer's rows are last."""
        readers = [column[1] for column in self.columns if isinstance(column, tuple)]
        items = [*self.rows, *self.footer]
        rows = [[read(item) for read in readers] for item in items] if readers else items
        return [[_cell(value) for value in row] for row in rows]

    @cached_property
    def heads(self) -> list[Head]:
        names = [column if isinstance(column, str) else column[0] for column in self.columns]
        return [Head(name, _kind([r[n] for r in self.cells])) for n, name in enumerate(names)]

    def first(self, rows: int | None) -> "Table":
        """The table with no more than its first rows, all for None; the others are counted."""
        rows = len(self.rows) if rows is None else rows
        less = max(0, len(self.rows) - rows)
        return replace(self, rows=self.rows[:rows], hidden=self.hidden + less)

    def brief(self) -> "Table":
        """The table of an answer on a terminal: its first rows; ``--verbose`` shows the rest."""
        return replace(self.first(self.most), caption="", rest="--verbose")

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
        cells, body = [[row[n] for n in kept] for row in self.cells], len(self.rows)
        return replace(
            self,
            columns=[self.heads[n].header for n in kept],
            rows=cells[:body],
            footer=cells[body:],
            keys=sum(number < self.keys for number in kept),
        )


def _cell(value: Any) -> Cell:
    if isinstance(value, str) or value is None:
        return Text(ABSENT if value is None else value)
    return value if isinstance(value, Text | Number) else quantity(value)


def _kind(cells: Sequence[Cell]) -> Literal["name", "number", "prose"]:
    texts = [cell.value for cell in cells if cell.value not in ("", ABSENT)]
    numbers = texts and all(map(_NUMERIC.fullmatch, texts))
    if numbers or any(isinstance(cell, Number) for cell in cells):
        return "number"
    return "prose" if any(len(text) > _SENTENCE and " " in text for text in texts) else "name"


class Command(str):
    """What a user may paste into a shell: a part of its own, or a fact."""

    @classmethod
    def of(cls, *words: object) -> "Command":
        """Make a command of words, each quoted as a shell needs it, on one line."""
        return cls(shlex.join(one_line(str(word)) for word in words))


@dataclass(frozen=True)
class Facts:
    """Facts by label; a ``Command`` is printed on one line."""

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


good, note = partial(Finding, "good"), partial(Finding, "note")
warning, bad = partial(Finding, "warning"), partial(Finding, "bad")
strong, dim = partial(Text, tone="strong"), partial(Text, tone="dim")


@dataclass(frozen=True)
class Chart:
    """A plot; a terminal leaves it out."""

    title: str  # what is shown, with its unit; the figure does not repeat it
    description: str  # what can be read from it, for those who cannot see it
    draw: Callable[[], "Figure"]  # imports matplotlib


Part = Table | Facts | Finding | Chart | Text | str
"""A part of a view; an empty string is a blank line."""


@dataclass(frozen=True)
class Section:
    """Details of an answer, below a heading."""

    heading: str
    parts: Sequence[Part] = ()
    note: str = ""
    level: int = 2  # of the heading: 3 below the heading of a run


@dataclass(frozen=True)
class Page:
    """Everything that a command shows, on a terminal or as an HTML page."""

    title: str  # of an HTML page
    answer: Sequence[Part]  # all that a terminal prints without --verbose
    sections: Sequence[Section] = ()

    def charts(self) -> list[Chart]:
        parts = [*self.answer, *(part for section in self.sections for part in section.parts)]
        return [part for part in parts if isinstance(part, Chart)]

    def merged(self) -> "Page":
        """The page with short tables in full in the answer, and nothing of that in sections."""
        short = {
            part.title: part
            for section in self.sections
            for part in section.parts
            if isinstance(part, Table) and len(part.rows) <= _MAX_ROWS
            if len(part.informative().heads) <= _MAX_COLUMNS
        }
        tables = {part.title: part for part in self.answer if isinstance(part, Table)} | short
        answer = [tables[part.title] if isinstance(part, Table) else part for part in self.answer]
        once = [part for part in answer if isinstance(part, Table | Finding)]
        sections = [
            replace(each, parts=[part for part in each.parts if part not in once])
            if any(not isinstance(part, Finding) for part in each.parts)  # else it stays whole
            else each
            for each in self.sections
        ]
        return replace(self, answer=answer, sections=sections)

    def made_now(self) -> "Page":
        """The page of what no record keeps, with the day and the command line that writes it."""
        facts = {"written": f"{date.today()}", "repeat": Command.of("dsv4kv", *sys.argv[1:])}
        return replace(self, sections=[*self.sections, Section("Run", [Facts(facts)])])

    def parts(self, *, verbose: bool) -> Iterator[Part]:
        """The answer for a terminal, its tables brief; with ``verbose`` all, and all sections."""
        for part in self.answer:
            yield part.brief() if isinstance(part, Table) and not verbose else part
        for section in filter(lambda each: verbose and each.parts, self.sections):
            yield ""
            first = section.parts[0]
            if not isinstance(first, Table) or first.title != section.heading:
                yield Text(section.heading, "strong")
            if section.note:
                yield Text(section.note, "dim")
            for number, part in enumerate(section.parts):
                if number and isinstance(part, Table):
                    yield ""
                yield part
