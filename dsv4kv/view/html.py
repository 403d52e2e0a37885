"""Pages: parts and charts in sections, in one HTML file without scripts or other files."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsv4kv.errors import ConfigError
from dsv4kv.files import replacing
from dsv4kv.view.plots import Chart
from dsv4kv.view.table import MARKS, Part, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Template

_CLASSES: Final = {"good": "good", "warning": "warning", "bad": "bad", "dim": "muted"}


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        heading: The question it answers.
        parts: Tables, charts, facts and sentences, in their order.
        note: How to read it.
        level: Of the heading: 2, or 3 below the heading of a run.
    """

    heading: str
    parts: Sequence[Part | Chart] = ()
    note: str = ""
    level: int = 2


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Attributes:
        title: Model, engine, GPU, trace: what the page is about.
        answer: What it comes to: a sentence, the table that carries it, the next command.
        sections: Everything else.
    """

    title: str
    answer: Sequence[Part | Chart]
    sections: Sequence[Section] = ()

    def charts(self) -> list[Chart]:
        """Every chart, in the order of the page."""
        parts = [*self.answer, *(part for section in self.sections for part in section.parts)]
        return [part for part in parts if isinstance(part, Chart)]


def render_page(page: Page) -> str:
    """The page's HTML."""
    return _template().render(page=page, marks={level: sign for level, (sign, _) in MARKS.items()})


def write_page(page: Page, target: Path) -> None:
    """Write a page; what was there before is replaced.

    Raises:
        ConfigError: The file cannot be written.
    """
    with _refusing(target, "--html page.html"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, render_page(page).encode())


def write_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write every chart as ``KEY.svg`` and ``KEY.png``.

    Raises:
        ConfigError: The folder cannot be written.
    """
    written = []
    with _refusing(folder, "--charts FOLDER"):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            for path, data in (
                (folder / f"{chart.key}.svg", chart.svg_file().encode()),
                (folder / f"{chart.key}.png", chart.png()),
            ):
                _replace(path, data)
                written.append(path)
    return written


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kind": lambda part: type(part).__name__, "shown": _shown}
    environment.globals["look"] = _look
    return environment.get_template("page.html")


def _shown(table: Table) -> Table:
    return table.informative(pictures=False)


def _look(kind: str, tone: str = "") -> str:
    """Classes of a cell: ``n`` for numbers, ``p`` for sentences, and its tone."""
    kinds = {"number": "n", "prose": "p"}
    return " ".join(filter(None, (kinds.get(kind, ""), _CLASSES.get(tone, ""))))


def _replace(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


@contextmanager
def _refusing(path: Path, option: str) -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): name another place with {option}."
        ) from None
