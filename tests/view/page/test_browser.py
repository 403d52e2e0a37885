"""The page in a real browser, at a desk and on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.view.page.browser import Tab, find_browser, open_browser
from tests.view.page.pages import RUNS, html_of, page_of

SIZES = {"desk": (1280, 800), "phone": (390, 844), "small phone": (320, 568)}
OUT_OF_VIEW = """
[...document.querySelectorAll('svg')].filter(svg => {
  const box = svg.getBoundingClientRect();
  return box.width < 200 || box.height < 30 || box.left < 0 || box.right > innerWidth;
}).length
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll('svg text')].map(
  text => parseFloat(getComputedStyle(text).fontSize)
    * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)))
"""
NARROW = """
[...document.querySelectorAll('tbody th, tbody td')].filter(cell => {
  const lines = [...cell.childNodes].map(node => node.textContent.trim().length);
  return Math.max(...lines) > 6 && cell.getBoundingClientRect().width < 48;
}).map(cell => cell.textContent)
"""
TEXT_ON_TEXT = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")]
    .map(e => [e.textContent, e.getBoundingClientRect()]);
  return texts.flatMap(([a, p], n) => texts.slice(n + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
    Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4).map(([b]) => a + ' on ' + b));
})
"""
EMPTY_OR_CUT = """
(() => {
  const room = document.querySelector('header').getBoundingClientRect();
  const tables = [...document.querySelectorAll('header table')];
  const right = Math.max(...tables.map(e => e.getBoundingClientRect().right));
  return tables.filter(e => e.offsetWidth > e.parentNode.clientWidth + 1 || room.right - right > 2)
    .map(e => e.parentNode.getAttribute('aria-label'));
})()
"""
BOTTOMS = """
[...document.querySelectorAll('header > p')].map(e => e.getBoundingClientRect().bottom)
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium here: install one, or name it with CHROMIUM=/path/to/it")
    with open_browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name in RUNS:
        (folder / f"{name}.html").write_text(html_of(name), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_a_page_opens_without_complaint_request_or_sideways_scrolling(
    tab: Tab, folder: Path, name: str
) -> None:
    page = folder / f"{name}.html"
    tab.show(page, *SIZES["desk"])
    assert tab.evaluate("document.querySelectorAll('svg').length") == len(page_of(name).charts())
    for width, height in SIZES.values():
        for dark in (False, True):
            tab.resize(width, height, dark=dark)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate(OUT_OF_VIEW) == 0
            assert tab.evaluate(NARROW) == []
            assert tab.evaluate(TEXT_ON_TEXT) == []
    asked = [event["request"]["url"] for event in tab.told("Network.requestWillBeSent")]
    assert asked == [page.as_uri()]
    for complaint in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
        assert tab.told(complaint) == []


@pytest.mark.parametrize("name", [name for name in RUNS if "long names" not in name])
def test_tables_of_the_answer_are_whole_and_fill_the_width_of_a_desk(
    tab: Tab, folder: Path, name: str
) -> None:
    tab.show(folder / f"{name}.html", *SIZES["desk"])
    assert tab.evaluate(EMPTY_OR_CUT) == []


def test_text_of_charts_is_large_enough_on_a_phone(tab: Tab, folder: Path) -> None:
    tab.show(folder / "one case.html", *SIZES["phone"])
    assert tab.evaluate(SMALLEST_TEXT) >= 9


def test_dark_is_dark_and_light_is_light(tab: Tab, folder: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('figure svg')).filter"
    seen = []
    for dark in (False, True):
        tab.show(folder / "one case.html", *SIZES["desk"], dark=dark)
        seen.append((tab.evaluate(ground), tab.evaluate(line)))
    assert [ground for ground, _ in seen] == ["rgb(255, 255, 255)", "rgb(16, 20, 24)"]
    assert seen[0][1] != seen[1][1]


def test_the_first_screen_has_the_answer(tab: Tab, folder: Path) -> None:
    for size in ("desk", "phone"):
        tab.show(folder / "one case.html", *SIZES[size])
        assert max(tab.evaluate(BOTTOMS)) < SIZES[size][1]
