"""Pages: parts and charts in sections, in one HTML file without scripts or other files."""

from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsv4kv import __version__
from dsv4kv.errors import ConfigError
from dsv4kv.files import whole_text, write_named
from dsv4kv.view.console import escaped
from dsv4kv.view.plots import to_svg, to_svg_file
from dsv4kv.view.table import MARKS, Page

if TYPE_CHECKING:
    from jinja2 import Template

_KINDS: Final = {"number": "n", "prose": "p"}
_CLASSES: Final = {"good": "good", "warning": "warning", "bad": "bad", "dim": "muted"}


def render_page(page: Page) -> str:
    numbers = count()  # ids in charts are unique on a page
    html = _template().render(
        page=page.merged(),
        version=__version__,
        marks={level: sign for level, (sign, _) in MARKS.items()},
        svg=lambda chart: to_svg(chart, f"{next(numbers)}"),
    )
    return escaped(whole_text(html.lstrip()))


def write_page(page: Page, target: Path) -> None:
    write_named(target, render_page(page), "--html")


def write_chart(target: Path, page: Page) -> None:
    """Write the page's first chart as an SVG file, or where the file ends in .html the page."""
    if target.suffix.lower() == ".html":
        write_named(target, render_page(page), "--chart")
    elif charts := page.charts():
        write_named(target, to_svg_file(charts[0]), "--chart")
    else:
        raise ConfigError(
            f"--chart {target}: there is nothing to draw: name a file .html for the page."
        )


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
    environment.filters |= {
        "kind": lambda part: type(part).__name__,
        "shown": lambda table: table.informative(),
    }

    def look(kind: str, tone: str = "") -> str:
        """Classes of a cell: ``n`` for numbers, ``p`` for sentences, and its tone."""
        return " ".join(filter(None, (_KINDS.get(kind), _CLASSES.get(tone))))

    environment.globals["look"] = look
    return environment.get_template("page.html")
