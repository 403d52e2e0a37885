"""Charts as SVG: for a page, whose colours they follow, and for a file of their own."""

import re
from typing import Final
from xml.etree import ElementTree as ET

from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import Chart, draw_svg

_SVG: Final = "http://www.w3.org/2000/svg"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_ROLES = {colour: role for role, colour in LIGHT.items()}
_COLOUR = re.compile("|".join(_ROLES))
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # which XML has no place for
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"#([\w-]+)")
_FAMILY = re.compile(r"; font-family: [^;]*")
_NO_TURN = re.compile(r"rotate\(-0 [^)]*\)")


def inline_svg(chart: Chart) -> str:
    """The chart as an element of a page: no ids but its own, colours by their roles.

    The page has a rule for ``var(--accent)`` and its like, light and dark.
    """
    root = _tidy(chart)
    return _COLOUR.sub(lambda found: f"var(--{_ROLES[found[0]]})", _serialise(root))


def standalone_svg(chart: Chart) -> str:
    """The chart as a file: on white, with its title above it."""
    root = _tidy(chart)
    _, top, width, height = map(float, root.attrib["viewBox"].split())
    head = 28
    root.set("viewBox", f"0 {top - head:g} {width:g} {height + head:g}")
    root.set("width", f"{width:g}")
    root.set("height", f"{height + head:g}")
    root.set("font-family", _FONT)
    paper = {"y": f"{-head}", "width": "100%", "height": "100%", "fill": LIGHT["paper"]}
    heading = {"x": "8", "y": "-10", "font-size": "12.5", "font-weight": "600"}
    root.insert(2, ET.Element(f"{{{_SVG}}}rect", paper))
    root.insert(3, ET.Element(f"{{{_SVG}}}text", heading | {"fill": LIGHT["ink"]}))
    root[3].text = chart.title
    return _serialise(root) + "\n"


def _tidy(chart: Chart) -> ET.Element:
    """Matplotlib's document without what a page has no use for."""
    root = ET.fromstring(_CONTROLS.sub("?", draw_svg(chart.figure)))
    _drop_metadata(root)
    _name(root, chart)
    references = set(_REFERENCE.findall(ET.tostring(root, encoding="unicode")))
    for element in list(root.iter()):
        if element.get("id") in chart.tips:
            _tell(element, chart.tips[element.attrib["id"]])
        _shorten(element, f"{chart.key}-", references)
    return root


def _drop_metadata(root: ET.Element) -> None:
    for name in ("metadata", "defs"):  # the first defs is a style for the whole document
        if (found := root.find(f"{{{_SVG}}}{name}")) is not None:
            root.remove(found)
    figure = root.find(f"{{{_SVG}}}g")
    if figure is not None:
        figure.remove(figure[0])  # the paper


def _name(root: ET.Element, chart: Chart) -> None:
    for name in ("width", "height", "version"):
        del root.attrib[name]
    names = {"title": chart.title, "desc": chart.description}
    for place, (tag, text) in enumerate(names.items()):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": tag})
        element.text = text
        root.insert(place, element)
    root.set("role", "img")
    root.set("aria-labelledby", "#title #desc")


def _tell(element: ET.Element, text: str) -> None:
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = text
    element.insert(0, title)


def _shorten(element: ET.Element, prefix: str, references: set[str]) -> None:
    """Two decimals are enough, and an id nobody refers to is none."""
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None
    kept = element.attrib.pop("id", None)
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        shorter = _NUMBER.sub(lambda found: f"{round(float(found[0]), 2):g}", value)
        shorter = _FAMILY.sub("", " ".join(shorter.split()))
        if name == "aria-labelledby":
            shorter = _REFERENCE.sub(rf"{prefix}\1", shorter)
        elif name in (_HREF, "clip-path"):
            shorter = _REFERENCE.sub(rf"#{prefix}\1", shorter)
        if not _NO_TURN.fullmatch(shorter):
            element.set("href" if name == _HREF else name, shorter)
    if kept in references:
        element.set("id", prefix + kept)


def _serialise(root: ET.Element) -> str:
    ET.register_namespace("", _SVG)
    return _CONTROLS.sub("?", ET.tostring(root, encoding="unicode"))
