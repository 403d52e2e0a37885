import re
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as ET

import pytest

from dsv4kv.view.charts.figure import LIGHT, Chart, draw_png, inline_svg, standalone_svg
from dsv4kv.view.charts.latency import Samples, distribution_chart, order_chart
from dsv4kv.view.charts.rates import operation_rates, rates_chart
from tests.runs.records import make_case


def make_chart() -> Chart:
    return order_chart(Samples("a < b & c", list(range(1_000_000, 1_000_300))))


def test_the_same_chart_is_the_same_text_every_time() -> None:
    assert inline_svg(make_chart()) == inline_svg(make_chart())
    assert standalone_svg(make_chart()) == standalone_svg(make_chart())


def test_a_chart_can_be_drawn_twice() -> None:
    chart = make_chart()
    assert inline_svg(chart) == inline_svg(chart)


@cache
def inline() -> str:
    return inline_svg(make_chart())


def test_an_inline_chart_follows_the_pages_colours_and_font() -> None:
    text = inline()
    assert not re.search(r"#[0-9a-f]{6}", text)
    assert "var(--accent)" in text
    assert "font-family" not in text


def test_a_file_has_its_own_colours_font_size_and_title() -> None:
    text = standalone_svg(make_chart())
    root = ET.fromstring(text)
    assert "var(" not in text
    assert LIGHT["accent"] in text
    assert "sans-serif" in root.attrib["font-family"]
    assert root.attrib["width"] == "600"
    assert root.attrib["viewBox"].split()[2] == "400"
    heading = root.find("{http://www.w3.org/2000/svg}text")
    assert heading is not None
    assert heading.text == "Pace of a < b & c, duration of each sample"


def test_ids_begin_with_the_charts_key_and_only_those_referred_to_are_left() -> None:
    text = inline()
    ids = re.findall(r' id="([^"]+)"', text)
    assert all(name.startswith("order-") for name in ids)
    assert [name for name in ids if f"#{name}" not in text] == ["order-title", "order-desc"]


def test_text_stays_text() -> None:
    root = ET.fromstring(inline())
    told = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "sample, in the order taken" in told


def test_a_mark_has_the_text_that_is_shown_over_it() -> None:
    chart = rates_chart(operation_rates(make_case()), [])
    root = ET.fromstring(inline_svg(chart))
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[1:] == [tip for (tip,) in chart.tips.values()]
    assert len(titles) == 8


NAMES = (r"$\frac$", "a$b$c", "a\x00b\x1b[1m", "漢字 🎉", "<b>&\"'")


def test_names_are_told_as_they_are_without_a_complaint(
    recwarn: pytest.WarningsRecorder,
) -> None:
    rate = operation_rates(make_case())[0]
    rates = [replace(rate, name=name, number=n) for n, name in enumerate(NAMES, 1)]
    chart = rates_chart(rates, [])
    root = ET.fromstring(standalone_svg(chart))
    told = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    shown = [name.replace("\x00", "?").replace("\x1b", "?") for name in NAMES]
    assert {f"{name}  {n}" for n, name in enumerate(shown, 1)} <= set(told)
    rows = [Samples(name, [1, 2, 3]) for name in NAMES]
    root = ET.fromstring(standalone_svg(distribution_chart(rows, shared=True)))
    told = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(shown) <= set(told)
    assert draw_png(chart.figure).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
