"""Writes a page, or its charts as files of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4kv.errors import ConfigError
from dsv4kv.files import replacing
from dsv4kv.runs.quantities import axis_text
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.view.charts.bars import Compared
from dsv4kv.view.charts.figure import (
    DARK,
    LIGHT,
    Chart,
    css_variables,
    draw_png,
    inline_svg,
    standalone_svg,
)
from dsv4kv.view.charts.latency import Samples, distribution_chart
from dsv4kv.view.charts.time import time_chart
from dsv4kv.view.markup import to_html
from dsv4kv.view.page.build import Page, build_page
from dsv4kv.view.table import MARKS

if TYPE_CHECKING:
    from jinja2 import Template


_TEMPLATES = Path(__file__).parent / "templates"


def write_page(
    records: Sequence[RunRecord], target: Path, compared: Compared | None = None
) -> None:
    """Write one HTML file that needs nothing else: no script, no network, no other file.

    Args:
        records: At least one, shown in this order.
        target: The file; what was there before is replaced.
        compared: Verdicts of ``dsv4kv compare``, shown first.

    Raises:
        ConfigError: The file cannot be written.
    """
    text = render_page(build_page(records, compared))
    with _refusing(target, "--html page.html"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, text.encode())


def write_charts(records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write every chart of the page as ``KEY.svg`` and ``KEY.png``, in light colours on white.

    Raises:
        ConfigError: The folder cannot be written.
    """
    written = []
    with _refusing(folder, "--charts FOLDER"):
        folder.mkdir(parents=True, exist_ok=True)
        for chart in build_page(records).charts():
            path = folder / f"{chart.key}.svg"
            _replace(path, standalone_svg(chart).encode())
            _replace(path.with_suffix(".png"), draw_png(chart.figure))
            written += [path, path.with_suffix(".png")]
    return written


def render_page(page: Page) -> str:
    """The page's HTML."""
    style = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    return _template().render(
        page=page,
        svg=inline_svg,
        parts=to_html,
        marks={level: sign for level, (sign, _) in MARKS.items()},
        style=style,
        light=css_variables(LIGHT),
        dark=css_variables(DARK),
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _replace(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


@contextmanager
def _refusing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): name another place with {option}."
        ) from None


def draw_replay(record: RunRecord, suffix: str) -> str:
    """The charts of a replay as ``.svg``, or a page around them as ``.html``.

    One case shows memory and requests over time; a sweep shows how long requests waited for their
    first token in every case.
    """
    if suffix == ".html":
        return render_page(build_page([record]))
    cases = [case for case in record.cases if case.replay]
    if len(cases) == 1 and cases[0].replay is not None:
        return standalone_svg(time_chart(cases[0].replay))
    return standalone_svg(_first_token_chart(cases))


def _first_token_chart(cases: list[Case]) -> Chart:
    rows = [
        Samples(axis_text(case), latency.samples_ns)
        for case in cases
        for latency in case.latencies
        if latency.name == "ttft"
    ]
    return distribution_chart(rows, shared=True)
