"""A row for each name: how large it is, by how much it changed, or what it consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from dsv4kv.measure.verdict import Judgement, Verdict
from dsv4kv.runs.profile import KernelTable
from dsv4kv.runs.schema import CacheSummary
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.charts.figure import LIGHT, SMALL, Chart, fit, new_figure, spread_shades, write
from dsv4kv.view.profile import titles
from dsv4kv.view.table import Finding, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEAD, _LEAST_SHOWN = 21, 56, 7.0

Stacked = Mapping[str, float]
"""Per cent of a whole by kind."""


def stacks_chart(rows: Sequence[tuple[str, Stacked]], title: str) -> Chart:
    """A bar for each row, all of one length; kinds have the same shade in all of them."""
    kinds = list(dict.fromkeys(kind for _, parts in rows for kind in parts))
    figure, (axes,) = new_figure(_HEAD + _ROW * len(rows))
    for kind, shade in zip(kinds, spread_shades(len(kinds)), strict=True):
        before = kinds[: kinds.index(kind)]
        starts = [sum(parts.get(each, 0) for each in before) for _, parts in rows]
        widths = [parts.get(kind, 0) for _, parts in rows]
        axes.barh(range(len(rows)), widths, left=starts, height=0.62, color=shade, label=kind)
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= _LEAST_SHOWN:
                middle = start + width / 2
                write(axes, middle, row, f"{width:.0f} %", "paper", ha="center")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    return Chart("step-shares", title, _describe(rows), figure)


def _describe(rows: Sequence[tuple[str, Stacked]]) -> str:
    shares = (
        f"{name}: {', '.join(f'{kind} {size:.1f} %' for kind, size in parts.items())}"
        for name, parts in rows
    )
    return f"{'; '.join(shares)}."


_ROW, _HEAD = 21, 16


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        name: At its left.
        size: How long it is.
        text: At its right.
        planned: Where it should end: a dark tick.
        ends: Of its interval: a thin line.
        colour: The accent if left out.
    """

    name: str
    size: float
    text: str
    planned: float | None = None
    ends: tuple[float, float] | None = None
    colour: str = LIGHT["accent"]

    @property
    def reach(self) -> float:
        """How far anything of it goes."""
        return max(self.size, self.planned or 0, self.ends[1] if self.ends else 0)


def draw_bars(bars: Sequence[Bar], room: float) -> "Figure":
    """At least one bar; ``room`` is what the texts need next to the longest, as a share of it."""
    figure, (axes,) = new_figure(_HEAD + _ROW * len(bars))
    rows = range(len(bars))
    longest = max(bar.reach for bar in bars) or 1
    axes.barh(rows, [bar.size for bar in bars], height=0.62, color=[bar.colour for bar in bars])
    for row, bar in enumerate(bars):
        if bar.planned is not None:
            axes.vlines(bar.planned, row - 0.42, row + 0.42, LIGHT["ink"], linewidth=1.6)
        if bar.ends is not None:
            axes.hlines(row, *bar.ends, LIGHT["ink"], linewidth=1.2)
        write(axes, bar.reach + longest * 0.02, row, bar.text)
    axes.set_yticks(rows, [bar.name for bar in bars])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, longest * (1 + room))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def pools_chart(cache: CacheSummary) -> Chart:
    """A bar per pool and layer type, the largest first; a dark tick where the plan said."""
    pools = sorted(cache.pools, key=lambda pool: -pool.allocated_bytes)
    bars = [
        Bar(
            name=pool.name if pool.layer_type == "all" else f"{pool.name} {pool.layer_type}",
            size=float(pool.allocated_bytes),
            text=format_bytes(pool.allocated_bytes),
            planned=float(pool.predicted_bytes),
        )
        for pool in pools
    ]
    total = format_bytes(sum(bar.size for bar in bars))
    summary = f"{total} allocated: {', '.join(f'{bar.name} {bar.text}' for bar in bars)}."
    return Chart("pools", "Memory by pool, all layers", summary, draw_bars(bars, room=0.24))


def shares_chart(shares: Mapping[str, float], whole: str) -> Chart:
    """A bar for each kind of work, in per cent of a whole."""
    bars = [Bar(name, share, f"{share:.1f} %") for name, share in shares.items()]
    summary = ", ".join(f"{bar.name} {bar.text}" for bar in bars)
    title = f"What kernels do, % of the {whole}"
    return Chart("shares", title, f"{summary}.", draw_bars(bars, room=0.2))


_MOST = 14
_LONGEST_NAME = 28


def kernels_chart(table: KernelTable) -> Chart:
    """A bar for each of the longest kernels, and one for all others together."""
    rows = sorted(table.kernels, key=lambda row: -row.total_ns)
    whole = sum(row.total_ns for row in rows) or 1
    times = [(name, row.total_ns) for name, row in zip(titles(rows), rows, strict=True)][:_MOST]
    if rest := rows[_MOST:]:
        times.append((f"{len(rest):,} others", sum(row.total_ns for row in rest)))
    shares = [f"{time / whole * 100:.0f} %" for _, time in times]
    bars = [
        Bar(_cut(name), time, f"{format_duration(time)}, {share}")
        for (name, time), share in zip(times, shares, strict=True)
    ]
    summary = ", ".join(f"{name} {share}" for (name, _), share in zip(times, shares, strict=True))
    figure = draw_bars(bars, room=0.5)
    return Chart("kernels", "Time of each kernel, all calls", f"{summary}.", figure)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


@dataclass(frozen=True)
class ComparedRow:
    """What was compared (an operation, a latency, a case of a sweep) and what came of it."""

    name: str
    judgement: Judgement


@dataclass(frozen=True)
class Compared:
    """Two sides, row by row, as a page shows them.

    Attributes:
        before: Name of the side that is compared with.
        after: Name of the side that is judged.
        floor: Changes below it are none: 0.01 is 1 %.
        rows: In the order to be shown.
        overall: Geometric mean over the rows; None without a row.
        verdict: The conclusion, as a sentence.
        cautions: What to know before believing it: sides that differ, launches that were lost.
        table: The numbers, as on a terminal.
        explanation: How to read them.
    """

    before: str
    after: str
    floor: float
    rows: Sequence[ComparedRow]
    overall: Judgement | None
    verdict: Finding
    cautions: Sequence[Finding]
    table: Table
    explanation: str


_CHANGES_HEAD = 58
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
    figure, (axes,) = new_figure(_CHANGES_HEAD + _ROW * len(rows))
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
    summary = ", ".join(f"{row.name} {_change_text(row)}" for row in rows)
    title = f"Change of time from {compared.before} to {compared.after}"
    if len(compared.rows) > _MOST_ROWS:
        title += f": {_MOST_ROWS} of {len(compared.rows):,} rows, those that changed most"
    return Chart("comparison", title, f"{summary}.", figure)


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
    write(axes, 1.02, number, _change_text(row), role, transform=axes.get_yaxis_transform())


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


def _change_text(row: ComparedRow) -> str:
    change = to_percent(row.judgement.ratio)
    return f"{change:+.1f} %  {row.judgement.verdict.lower()}"


def to_percent(ratio: float) -> float:
    """Change of time in per cent, to a tenth and without a minus before a zero."""
    return round((ratio - 1) * 100, 1) + 0.0
