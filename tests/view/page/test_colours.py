"""Whether everything can be told from what it stands on, in light and in dark."""

import re
from pathlib import Path

import pytest

import dsv4kv.view.page
from dsv4kv.view.charts.figure import DARK, LIGHT, SHADES, css_variables
from tests.view.page.pages import RUNS, html_of

TEXTS = ("ink", "muted", "accent", "good", "warning", "bad")
CSS = (Path(dsv4kv.view.page.__file__).parent / "templates" / "page.css").read_text("utf-8")
both = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_is_21_between_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@both
@pytest.mark.parametrize("role", TEXTS)
@pytest.mark.parametrize("ground", ["paper", "wash"])
def test_text_stands_out_four_and_a_half_times(
    colours: dict[str, str], role: str, ground: str
) -> None:
    assert contrast(colours[role], colours[ground]) >= 4.5


@both
@pytest.mark.parametrize("role", SHADES)
def test_marks_of_charts_stand_out_three_times(colours: dict[str, str], role: str) -> None:
    assert contrast(colours[role], colours["paper"]) >= 3


@both
def test_what_is_written_on_a_shaded_stretch_can_be_read(colours: dict[str, str]) -> None:
    assert contrast(colours["ink"], colours["heat"]) >= 4.5
    assert contrast(colours["accent"], colours["heat"]) >= 3


@both
def test_shades_go_one_way(colours: dict[str, str]) -> None:
    steps = [contrast(colours[role], colours["paper"]) for role in SHADES]
    assert steps == sorted(steps)


def test_light_and_dark_have_the_same_roles_and_light_tells_them_apart() -> None:
    assert list(LIGHT) == list(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_the_style_sheet_uses_roles_only_and_only_roles_that_exist() -> None:
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", CSS)
    assert set(re.findall(r"var\(--([\w-]+)\)", CSS)) <= LIGHT.keys()
    assert css_variables({"ink": "#123456"}) == "--ink:#123456;"


@pytest.mark.parametrize("name", RUNS)
def test_charts_on_a_page_have_no_colours_but_roles(name: str) -> None:
    for svg in re.findall(r"<svg.*?</svg>", html_of(name), re.DOTALL):
        told = re.findall(r"(?:fill|stroke): ([^;\"]+)", svg)
        roles = {each[6:-1] for each in told if each.startswith("var(--")}
        assert roles <= LIGHT.keys()
        assert {each for each in told if not each.startswith("var(--")} <= {"none"}
