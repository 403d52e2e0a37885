"""Two runs against each other: a ratio and its interval in every row."""

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING

from dsv4kv.measure.verdict import Verdict
from dsv4kv.report.page.charts.marks import fit, write
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import Chart, new_figure
from dsv4kv.report.page.inputs import Compared, ComparedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _HEAD = 21, 58
_MOST_ROWS = 100  # more make a chart that nobody reads, and a page too large to send
_LETTERS = 30  # of a name: half of what is across
_LEAST = 103.0  # per cent to the left: no time falls by more than all of it
_FAR = 5.0  # rows beyond so many times the middle one's change would hide all others
_CHANGES = (Verdict.SLOWER, Verdict.FASTER)
_ROLES = {
    Verdict.SAME: "muted",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}


def ratios_chart(compared: Compared) -> Chart:
    """Change of time in per cent with its interval; the band is what counts as no change.

    A hollow mark has no interval: there were too few launches to know one. Of very many rows
    those are drawn that are slower or faster, and of the others those that changed most.
    """
    rows = _choose(compared.rows)
    if compared.overall:
        rows.append(ComparedRow("geometric mean", compared.overall))
    figure, (axes,) = new_figure(_HEAD + _ROW * len(rows))
    floor = compared.floor * 100
    axes.axvspan(-floor, floor, color=LIGHT["rule"], lw=0, zorder=0)
    axes.axvline(0, color=LIGHT["ink"], linewidth=1.0)
    for number, row in enumerate(rows):
        _draw_row(axes, number, row)
    axes.axhline(len(rows) - 1.5, color=LIGHT["rule"], linewidth=0.8)
    axes.set_yticks(range(len(rows)), [fit(row.name, _LETTERS) for row in rows])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    reach = _reach(rows, floor)
    for number, row in enumerate(rows):
        _point_outside(axes, number, row, reach)
    axes.set_xlim(-min(reach, _LEAST), reach)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0")
    axes.grid(axis="x")
    axes.set_xlabel("← faster · change of time · slower →")
    told = ", ".join(f"{row.name} {_tell(row)}" for row in rows)
    title = f"Change of time from {compared.before} to {compared.after}"
    if len(compared.rows) > _MOST_ROWS:
        title += f": {_MOST_ROWS} of {len(compared.rows):,} rows, those that changed most"
    return Chart("comparison", title, f"{told}.", figure)


def _choose(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """The rows to draw, in the order of the table."""

    def weight(row: ComparedRow) -> tuple[bool, float]:
        return row.judgement.verdict in _CHANGES, abs(log(row.judgement.ratio))

    chosen = sorted(range(len(rows)), key=lambda n: weight(rows[n]), reverse=True)[:_MOST_ROWS]
    return [rows[n] for n in sorted(chosen)]


def _draw_row(axes: "Axes", number: int, row: ComparedRow) -> None:
    role = _ROLES[row.judgement.verdict]
    known = row.judgement.interval is not None
    face = LIGHT[role] if known else LIGHT["paper"]
    axes.hlines(number, *_ends(row), LIGHT[role], linewidth=1.8)
    value = to_percent(row.judgement.ratio)
    axes.plot(value, number, "o", color=LIGHT[role], markerfacecolor=face, markersize=5.5)
    write(axes, 1.02, number, _tell(row), role, transform=axes.get_yaxis_transform())


def _reach(rows: Sequence[ComparedRow], floor: float) -> float:
    """How far the axis goes to either side, in per cent.

    Whatever is slower or faster is on it; what is unclear and far out may leave it.
    """
    ends = sorted(max(map(abs, _ends(row))) for row in rows)
    usual = ends[(len(ends) - 1) // 2] * _FAR
    judged = [max(map(abs, _ends(row))) for row in rows if row.judgement.verdict in _CHANGES]
    return max(floor * 1.5, min(ends[-1], usual), *judged) * 1.08


def _point_outside(axes: "Axes", number: int, row: ComparedRow, reach: float) -> None:
    """An arrow at the edge where a change or its interval goes on beyond the axis."""
    for end in _ends(row):
        if abs(end) > reach:
            marker, place = (">", reach) if end > 0 else ("<", -reach)
            axes.plot(place * 0.985, number, marker, color=LIGHT[_ROLES[row.judgement.verdict]],
                      markersize=5)  # fmt: skip


def _ends(row: ComparedRow) -> tuple[float, float]:
    """Change at the ends of the interval in per cent; both the change itself without one."""
    low, high = row.judgement.interval or (row.judgement.ratio, row.judgement.ratio)
    return to_percent(low), to_percent(high)


def _tell(row: ComparedRow) -> str:
    change = to_percent(row.judgement.ratio)
    return f"{change:+.1f} %  {row.judgement.verdict.lower()}"


def to_percent(ratio: float) -> float:
    """Change of time in per cent, to a tenth and without a minus before a zero."""
    return round((ratio - 1) * 100, 1) + 0.0
