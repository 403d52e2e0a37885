"""A step's timeline as a picture (SVG) and as a Chrome trace, which Perfetto opens."""

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.files import write_named
from dsv4kv.measure.profilers.classify import CATEGORIES, Category, shorten
from dsv4kv.record.profile import Timeline
from dsv4kv.units import format_duration

# Okabe and Ito's colours, told apart by colour-blind readers too
_COLOURS: dict[Category, str] = {
    "insert": "#d55e00",
    "gather": "#0072b2",
    "compress": "#009e73",
    "indexer": "#cc79a7",
    "attention": "#e69f00",
    "other": "#999999",
}
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 1100, 150, 40, 64, 20
_TICKS = 8
_LETTER = 6.5  # pixels: a name is written where it has room


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write a picture (``.svg``) or a Chrome trace (``.json``).

    Raises:
        ConfigError: The name ends in neither, or the file cannot be written.
    """
    refuse_other_names([path])
    text = draw_svg(timeline, "One step") if path.suffix == ".svg" else chrome_trace(timeline)
    write_named(path, text, "--timeline")


def refuse_other_names(paths: Iterable[Path]) -> None:
    """Refuse names that no timeline can have.

    Raises:
        ConfigError: One is neither a picture nor a Chrome trace, or its folder does not exist.
    """
    for path in paths:
        if path.suffix not in (".svg", ".json"):
            raise ConfigError(f"{path}: a timeline is a picture, .svg, or a Chrome trace, .json.")
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}.")


def draw_svg(timeline: Timeline, title: str) -> str:
    """The timeline as one SVG document: a row for each lane, and more where pieces overlap."""
    rows = _rows(timeline)
    height = _TOP + _ROW * (sum(rows) + 2)
    last_ns = max(map(sum, zip(timeline.start_ns, timeline.duration_ns, strict=True)), default=0)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="system-ui, sans-serif" '
        'font-size="11" role="img">'
    )
    body = [
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        *_legend(),
        *_ticks(last_ns or 1, height),
        *_lanes(timeline, rows),
        *_boxes(timeline, rows, last_ns or 1),
    ]
    return "\n".join([head, *body, "</svg>", ""])


def chrome_trace(timeline: Timeline) -> str:
    """The timeline as JSON of Chrome's trace events: times in µs, a thread for each lane."""
    lanes = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": lane}}
        for tid, lane in enumerate(timeline.lanes, start=1)
    ]
    pieces = [
        {
            "ph": "X",
            "pid": 1,
            "tid": lane + 1,
            "ts": start / 1000,
            "dur": duration / 1000,
            "name": shorten(timeline.names[name]),
            "cat": timeline.categories[name],
            "args": {"full name": timeline.names[name]},
        }
        for name, lane, start, duration in zip(
            timeline.name, timeline.lane, timeline.start_ns, timeline.duration_ns, strict=True
        )
    ]
    document = {"displayTimeUnit": "ns", "traceEvents": [*lanes, *pieces]}
    return json.dumps(document, separators=(",", ":")) + "\n"


def _placed(timeline: Timeline) -> list[int]:
    """Row of every piece within its lane: the first that is free when it begins."""
    free: list[list[int]] = [[] for _ in timeline.lanes]
    order = sorted(
        range(len(timeline.name)), key=lambda i: (timeline.start_ns[i], -timeline.duration_ns[i])
    )
    rows = [0] * len(order)
    for i in order:
        ends = free[timeline.lane[i]]
        start = timeline.start_ns[i]
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        ends[row : row + 1] = [start + timeline.duration_ns[i]]
        rows[i] = row
    return rows


def _rows(timeline: Timeline) -> list[int]:
    """Rows that each lane needs."""
    rows = [1] * len(timeline.lanes)
    for lane, row in zip(timeline.lane, _placed(timeline), strict=True):
        rows[lane] = max(rows[lane], row + 1)
    return rows


def _legend() -> Iterator[str]:
    for number, category in enumerate(CATEGORIES):
        x = _LEFT + 110 * number
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{_COLOURS[category]}"/>'
        yield f'<text x="{x + 17}" y="44">{category}</text>'


def _ticks(last_ns: int, height: int) -> Iterator[str]:
    for number in range(_TICKS + 1):
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * number / _TICKS
        label = format_duration(last_ns * number / _TICKS)
        ends = f'x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{height - 24}"'
        yield f'<line {ends} stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{label}</text>'


def _lanes(timeline: Timeline, rows: list[int]) -> Iterator[str]:
    for number, lane in enumerate(timeline.lanes):
        y = _TOP + _ROW * sum(rows[:number]) + 13
        yield f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end">{escape(lane)}</text>'


def _boxes(timeline: Timeline, rows: list[int], last_ns: int) -> Iterator[str]:
    scale = (_WIDTH - _LEFT - _RIGHT) / last_ns
    tops = [_TOP + _ROW * sum(rows[:number]) for number in range(len(rows))]
    pieces = zip(
        timeline.name,
        timeline.lane,
        timeline.start_ns,
        timeline.duration_ns,
        _placed(timeline),
        strict=True,
    )
    for name, lane, start, duration, row in pieces:
        short, colour = shorten(timeline.names[name]), _COLOURS[timeline.categories[name]]
        x, y, width = _LEFT + start * scale, tops[lane] + _ROW * row, max(0.3, duration * scale)
        tip = escape(f"{short}: {format_duration(duration)}")
        yield (
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 4}" fill="{colour}" '
            f'stroke="#ffffff" stroke-width="0.3"><title>{tip}</title></rect>'
        )
        if len(short) * _LETTER < width:
            yield f'<text x="{x + 3:.2f}" y="{y + 12}" fill="#ffffff">{escape(short)}</text>'
