"""The chart of a budget sweep, and the page around it."""

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.sweep import Axis, Row, run_sweep
from dsv4kv.view.budget_chart import budget_chart, draw_page, draw_sweep
from dsv4kv.view.charts.figure import LIGHT
from tests.view.page.drawn import only_axes
from tests.view.page.markup import Element, parse

CONTEXTS = Axis("context", ("4K", "32K", "1M"))
GPUS = Axis("gpu", ("h200", "b200"))
ENGINES = Axis("engine", ("dsv4kv", "vllm:0.33"))
EIGHT = {"gpus": "8"}
OF_CONTEXT = "context of a request, tokens (1K = 1,024)"


def rows(texts: dict[str, str], *axes: Axis) -> list[Row]:
    return run_sweep(texts, axes)


def drawn(texts: dict[str, str], *axes: Axis) -> Any:
    return only_axes(budget_chart(rows(texts, *axes)))


def lines_of(axes: Any) -> dict[str, list[float]]:
    return {each.get_label(): list(each.lines[0].get_ydata()) for each in axes.containers}


def test_a_chart_of_contexts_has_a_line_for_every_other_value_and_labels_with_units() -> None:
    axes = drawn(EIGHT, CONTEXTS, GPUS)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4K", "32K", "1M"]
    assert axes.get_xlabel() == OF_CONTEXT
    found = rows(EIGHT, CONTEXTS, GPUS)
    assert lines_of(axes) == {
        f"{gpu} (8 GPUs)": [
            row.found.max_concurrency for row in found if row.found and row.point["gpu"] == gpu
        ]
        for gpu in ("h200", "b200")
    }


def test_a_file_has_its_title_and_says_which_gibibyte_is_meant() -> None:
    root = ElementTree.fromstring(draw_sweep(rows(EIGHT, CONTEXTS)))
    told = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert told[:2] == [
        "Requests at once, by context",
        "dsv4kv budget; memory is binary: 1 GiB = 2^30 B",
    ]


def test_the_context_lies_below_whatever_the_order_of_the_axes() -> None:
    axes = drawn({"tp": "8"}, Axis("gpus", ("8", "16")), CONTEXTS)
    assert axes.get_xlabel() == OF_CONTEXT
    assert list(lines_of(axes)) == ["8 (8 GPUs)", "16 (16 GPUs)"]


def test_points_lie_by_the_logarithm_of_context_and_load() -> None:
    axes = drawn(EIGHT, Axis("context", ("4K", "64K", "1M")))
    (line,) = (container.lines[0] for container in axes.containers)
    first, second = (after - before for before, after in pairwise(line.get_xdata()))
    assert first == pytest.approx(second)
    assert axes.get_yscale() == "log"
    assert list(line.get_ydata()) == sorted(line.get_ydata(), reverse=True)


def test_nothing_that_fits_is_a_hollow_point_on_the_axis() -> None:
    axes = drawn({"gpus": "4", "model": "v4-pro", "gpu": "h200"}, CONTEXTS)
    hollow = axes.lines[-1]
    assert list(hollow.get_ydata()) == [axes.get_ylim()[0]] * 3
    assert to_hex(hollow.get_markerfacecolor()) == LIGHT["paper"]


def test_a_chart_of_names_has_a_bar_for_every_combination_with_its_number() -> None:
    texts = {**EIGHT, "context": "128K"}
    axes = drawn(texts, GPUS, ENGINES)
    counts = [row.found.max_concurrency for row in rows(texts, GPUS, ENGINES) if row.found]
    assert [bar.get_width() for bar in axes.patches] == counts
    told = [text.get_text() for text in axes.texts]
    assert [text.split()[:2] for text in told] == [
        [f"{count:,}", engine] for count, engine in zip(counts, ENGINES.values * 2, strict=True)
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["h200", "", "b200", ""]


@pytest.mark.parametrize(
    ("texts", "axis", "label"),
    [
        ({"context": "32K"}, Axis("concurrency", ("8", "800", "8K")), "GPUs needed"),
        ({"gpus": "8"}, Axis("concurrency", ("8", "800")), "Longest context, tokens"),
        (
            {"gpus": "8", "context": "32K"},
            Axis("concurrency", ("8", "800")),
            "Cache on one GPU, GiB",
        ),
        (
            {"gpus": "8", "context": "32K"},
            Axis("model", ("v4-flash", "gqa8")),
            "Cache of one request, GiB",
        ),
    ],
)
def test_a_chart_shows_what_was_left_open(texts: dict[str, str], axis: Axis, label: str) -> None:
    assert budget_chart(rows(texts, axis)).title == f"{label}, by {axis.name}"


def test_more_lines_than_can_be_told_apart_are_refused() -> None:
    many = Axis("concurrency", tuple(str(n) for n in range(1, 14)))
    with pytest.raises(ConfigError, match=r"a chart of 13 lines cannot be read \(at most 12\)"):
        budget_chart(run_sweep(EIGHT, [CONTEXTS, many]))


def test_the_page_holds_the_chart_and_every_row() -> None:
    found = rows(EIGHT, CONTEXTS, GPUS)
    page = parse(draw_page(found))
    (figure,) = page.find("figure")
    assert figure.find("figcaption")[0].text == "Requests at once, by context and gpu"
    sweep, values = page.find("table")
    for table in (sweep, values):
        told = [cells(row) for row in table.find("tbody")[0].find("tr")]
        assert [row[:2] for row in told] == [list(row.point.values()) for row in found]
    assert all(
        f"{row.found.use.cache:,}" in cells(line)
        for row, line in zip(found, values.find("tbody")[0].find("tr"), strict=True)
        if row.found
    )


def cells(row: Element) -> list[str]:
    return [cell.text for cell in row.find("th", "td")]
