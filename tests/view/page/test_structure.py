"""What holds for every page, whatever is on it."""

import re
from itertools import pairwise

import pytest

from tests.view.page.markup import Element, parse
from tests.view.page.pages import ATTACK, RUNS, html_of, page_of

LOADING = {"src", "srcset", "data", "poster", "background", "action", "xlink:href"}
every_page = pytest.mark.parametrize("name", RUNS)


def root_of(name: str) -> Element:
    return parse(html_of(name))


@every_page
def test_nothing_is_loaded_and_nothing_runs(name: str) -> None:
    root = root_of(name)
    assert not root.find("script", "img", "iframe", "object", "embed", "video", "audio", "base")
    for element in root:
        assert not LOADING & element.attributes.keys()
        assert not [a for a in element.attributes if a.startswith("on")]
        assert element.attributes.get("href", "#").startswith(("#", "data:,"))
    style = "".join(element.text for element in root.find("style"))
    assert not re.search(r"@import|@font-face|url\(", style)
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html_of(name)))
    assert addresses <= {"http://www.w3.org/2000/svg"}


@every_page
def test_ids_are_unique_and_whatever_is_referred_to_exists(name: str) -> None:
    root = root_of(name)
    ids = [element.attributes["id"] for element in root if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in root:
        named = element.attributes.get("aria-labelledby", "").split()
        links = re.findall(r"#([\w-]+)", element.attributes.get("href", ""))
        clips = re.findall(r"url\(#([^)]+)\)", element.attributes.get("clip-path", ""))
        assert {*named, *links, *clips} <= set(ids)


@every_page
def test_every_chart_has_a_title_a_description_and_a_caption(name: str) -> None:
    root = root_of(name)
    figures = root.find("figure")
    assert len(figures) == len(page_of(name).charts()) == len(root.find("svg"))
    for figure, chart in zip(figures, page_of(name).charts(), strict=True):
        caption, drawing = (child for child in figure.children if isinstance(child, Element))
        assert (caption.text, drawing.attributes["role"]) == (chart.title, "img")
        assert drawing.attributes["aria-label"] == f"{chart.title}: {chart.description}"
        assert len(chart.description) > 10


@every_page
def test_every_table_scrolls_in_a_named_region_and_has_scoped_headers_and_full_rows(
    name: str,
) -> None:
    root = root_of(name)
    regions = [e for e in root if e.attributes.get("role") == "region"]
    assert [region.find("table") for region in regions] == [[t] for t in root.find("table")]
    for region in regions:
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["aria-label"]
    for table in root.find("table"):
        head, body = table.find("thead")[0], table.find("tbody")[0]
        columns = head.find("th")
        assert all(th.attributes["scope"] == "col" for th in columns)
        width = sum(int(th.attributes.get("colspan", 1)) for th in columns)
        for row in body.find("tr"):
            cells = [cell for cell in row.children if isinstance(cell, Element)]
            assert len(cells) == width
            assert cells[0].tag == "th"
            assert all(c.attributes["scope"] == "row" for c in cells if c.tag == "th")


@every_page
def test_headings_skip_no_level_and_links_lead_to_every_section(name: str) -> None:
    root = root_of(name)
    levels = [int(h.tag[1]) for h in root.find("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    links = {a.attributes["href"].removeprefix("#") for a in root.find("a")}
    sections = {s.attributes["aria-labelledby"] for s in root.find("section")}
    assert sections == links or len(sections) < 2


@every_page
def test_a_page_names_its_language_its_title_and_fits_a_phone(name: str) -> None:
    root = root_of(name)
    assert root.attributes["lang"] == "en"
    assert root.find("title")[0].text == root.find("h1")[0].text
    (viewport,) = [m for m in root.find("meta") if m.attributes.get("name") == "viewport"]
    assert viewport.attributes["content"] == "width=device-width, initial-scale=1"


def test_texts_of_a_record_stay_texts() -> None:
    root = root_of("hostile texts")
    assert root.text.count(ATTACK) >= 6
    assert "<script" not in html_of("hostile texts")
    assert "<img" not in html_of("hostile texts")
