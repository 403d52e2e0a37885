"""What a chart has drawn, for tests: matplotlib's own types say little about it."""

from typing import Any

from dsv4kv.view.charts.figure import Chart


def axes_of(chart: Chart) -> list[Any]:
    """Axes from top to bottom."""
    return list(chart.figure.axes)


def only_axes(chart: Chart) -> Any:
    """The axes of a chart that has one."""
    (axes,) = chart.figure.axes
    return axes


def place_of(line: Any) -> tuple[float, float]:
    """The first point of a line, or the place of a mark."""
    return float(line.get_xdata()[0]), float(line.get_ydata()[0])
