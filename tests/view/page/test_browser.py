"""The page in a real browser, at a desk and on a phone."""

import json
import os
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

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


GROUND = "getComputedStyle(document.body).backgroundColor"
LINE = "getComputedStyle(document.querySelector('figure svg')).filter"
WIDTH = "document.documentElement.scrollWidth"
FRAMES = """<!DOCTYPE html><html><body><script>
(async ([sizes, questions]) => {
  const answers = {};
  for (const [name, [width, height]] of Object.entries(sizes)) {
    const frame = document.createElement('iframe');
    frame.style = `width:${width}px;height:${height}px;border:0`;
    frame.src = 'page.html';
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    answers[name] = Object.fromEntries(questions.map(e => [e, frame.contentWindow.eval(e)]));
    frame.remove();
  }
  document.body.textContent = JSON.stringify(answers);
})(ASKED);
</script></body></html>
"""
BROWSER = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--allow-file-access-from-files", "--virtual-time-budget=60000", "--dump-dom"),
)
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def browser() -> str:
    """``$CHROMIUM``, or one on the path."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return found or pytest.skip("no Chromium here: install one, or name it with CHROMIUM=PATH")


def ask(browser: str, folder: Path, name: str, *questions: str, dark: bool = False) -> Any:
    """What a page answers to JavaScript expressions in a frame of every size."""
    (folder / "page.html").write_text(html_of(name), encoding="utf-8")
    asked = FRAMES.replace("ASKED", json.dumps([SIZES, questions]).replace("<", r"\u003c"))
    (folder / "frames.html").write_text(asked, encoding="utf-8")
    words = [browser, *BROWSER, f"--user-data-dir={folder / 'profile'}", *[DARK] * dark]
    url = (folder / "frames.html").as_uri()
    done = subprocess.run([*words, url], capture_output=True, text=True, check=True, timeout=300)
    return json.loads(unescape(done.stdout.partition("<body>")[2].partition("</body>")[0]))


@pytest.mark.parametrize("name", RUNS)
def test_a_page_fits_every_window_and_nothing_on_it_is_cut(
    browser: str, name: str, tmp_path: Path
) -> None:
    charts = "document.querySelectorAll('svg').length"
    layout = (WIDTH, OUT_OF_VIEW, NARROW, TEXT_ON_TEXT, EMPTY_OR_CUT, charts)
    for size, found in ask(browser, tmp_path, name, *layout).items():
        assert found[WIDTH] <= SIZES[size][0]
        assert (found[OUT_OF_VIEW], found[NARROW], found[TEXT_ON_TEXT]) == (0, [], [])
        assert found[EMPTY_OR_CUT] == [] or size != "desk" or "long names" in name
        assert found[charts] == len(page_of(name).charts())


def test_the_first_screen_has_the_answer_in_letters_of_a_size_to_read_dark_or_light(
    browser: str, tmp_path: Path
) -> None:
    asked = (GROUND, LINE, SMALLEST_TEXT, BOTTOMS)
    light, dark = (ask(browser, tmp_path, "one case", *asked, dark=dark) for dark in (False, True))
    for size in ("desk", "phone"):
        assert max(light[size][BOTTOMS]) < SIZES[size][1]
        assert light[size][GROUND] == "rgb(255, 255, 255)"
        assert dark[size][GROUND] == "rgb(16, 20, 24)"
        assert light[size][LINE] != dark[size][LINE]
    assert light["phone"][SMALLEST_TEXT] >= 9
