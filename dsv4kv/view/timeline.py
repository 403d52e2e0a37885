"""A step's timeline as a picture (SVG) and as a Chrome trace, which Perfetto opens."""

import json
from collections.abc import Iterable
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.files import write_named
from dsv4kv.measure.profilers.classify import shorten
from dsv4kv.record.profile import Timeline


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write a picture (``.svg``) or a Chrome trace (``.json``).

    Raises:
        ConfigError: The name ends in neither, or the file cannot be written.
    """
    refuse_other_names([path])
    text = draw_timeline(timeline) if path.suffix == ".svg" else chrome_trace(timeline)
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


def draw_timeline(timeline: Timeline) -> str:
    """The step as an SVG document."""
    from dsv4kv.view.charts.figure import standalone_svg
    from dsv4kv.view.charts.time import timeline_chart

    return standalone_svg(timeline_chart(timeline, "One step"))


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
