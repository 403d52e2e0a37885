"""A replay as charts: memory by pool, requests, and times, over one axis of time."""

from statistics import median
from typing import TYPE_CHECKING

from dsv4kv.report.page.build import build_page
from dsv4kv.report.page.charts.latency import Samples, distribution_chart
from dsv4kv.report.page.charts.marks import byte_ticks, spread_shades
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import SMALL, Chart, new_figure, short_bytes
from dsv4kv.report.page.inputs import Extras, Track
from dsv4kv.report.page.svg import standalone_svg
from dsv4kv.report.page.write import render_page
from dsv4kv.report.record import Case, RunRecord
from dsv4kv.report.replay_record import ReplayResult
from dsv4kv.report.sweep import axis_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 330
_NS = 1e9


def draw_replay(record: RunRecord, suffix: str) -> str:
    """The charts of a replay as ``.svg``, or a page around them as ``.html``.

    One case shows memory and requests over time; a sweep shows how long requests waited for their
    first token in every case.
    """
    cases = [case for case in record.cases if case.replay]
    if suffix == ".html":
        memory = memory_tracks(cases[0].replay) if cases and cases[0].replay else ()
        shown = record.model_copy(update={"cases": [_with_spans(case) for case in record.cases]})
        return render_page(build_page([shown], Extras(memory=memory)))
    if len(cases) == 1 and cases[0].replay is not None:
        return standalone_svg(time_chart(cases[0].replay))
    return standalone_svg(_first_token_chart(cases))


def _with_spans(case: Case) -> Case:
    """The case without times that are mostly 0: a page tells spreads as shares of medians."""
    spans = [each for each in case.latencies if median(each.samples_ns) > 0]
    return case.model_copy(update={"latencies": spans})


def memory_tracks(result: ReplayResult) -> tuple[Track, ...]:
    """Bytes held over time: of running requests, shared with the cache, cached, checkpoints."""
    series = result.series
    sizes = {pool.name: pool.unit_bytes for pool in result.pools}
    seconds = [at / _NS for at in series.at_ns]
    rows = (
        ("slots", [r + p for r, p in zip(series.running, series.paused, strict=True)], "slots"),
        ("a request's own blocks", series.own_blocks, "blocks"),
        ("shared blocks", series.shared_blocks, "blocks"),
        ("cached blocks", series.cached_blocks, "blocks"),
        ("checkpoints", series.checkpoints, "checkpoints"),
    )
    return tuple(
        Track(name, "B", seconds, [float(count * sizes[pool]) for count in counts])
        for name, counts, pool in rows
    )


def time_chart(result: ReplayResult) -> Chart:
    """Memory by pool above, requests below, over the time of the replay."""
    figure, (memory, requests) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    tracks = memory_tracks(result)
    _stack(memory, tracks)
    _lines(requests, result)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    series = result.series
    told = (
        f"{len(series.at_ns)} moments; at most {max(series.running, default=0):,} requests ran, "
        f"{max(series.waiting, default=0):,} waited and {max(series.paused, default=0):,} paused."
    )
    return Chart("replay", "Memory held and requests over time", told, figure)


def _stack(axes: "Axes", tracks: tuple[Track, ...]) -> None:
    seconds = list(tracks[0].seconds)
    sizes = [[value or 0.0 for value in track.values] for track in tracks]
    names = [track.name for track in tracks]
    axes.stackplot(seconds, *sizes, colors=spread_shades(len(tracks)), labels=names, linewidth=0)
    peak = max((sum(moment) for moment in zip(*sizes, strict=True)), default=1.0)
    axes.set_yticks(byte_ticks(0, peak))
    axes.yaxis.set_major_formatter(lambda value, _: short_bytes(value))
    axes.grid(axis="y")
    axes.set_ylim(0)


def _lines(axes: "Axes", result: ReplayResult) -> None:
    series = result.series
    seconds = [at / _NS for at in series.at_ns]
    looks = {"running": "accent", "waiting": "warning", "paused": "bad"}
    for name, role in looks.items():
        axes.step(seconds, getattr(series, name), where="post", color=LIGHT[role], linewidth=1.1,
                  label=name)  # fmt: skip
    axes.set_ylabel("requests")
    axes.set_xlabel("seconds of the replay")
    axes.grid(axis="y")
    axes.set_ylim(0)
    if len(seconds) > 1:
        axes.set_xlim(seconds[0], seconds[-1])


def _first_token_chart(cases: list[Case]) -> Chart:
    rows = [
        Samples(axis_text(case), latency.samples_ns)
        for case in cases
        for latency in case.latencies
        if latency.name == "ttft"
    ]
    return distribution_chart(rows, shared=True)
