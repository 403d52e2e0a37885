"""A replay over its time: memory by what holds it, and requests."""

from typing import TYPE_CHECKING

from dsv4kv.report.page.charts.memory import stack_sizes
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import SMALL, Chart, new_figure
from dsv4kv.report.replay_record import ReplayResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 330
_NS_TO_S = 1e-9


def held_sizes(result: ReplayResult) -> dict[str, list[int]]:
    """Bytes at every moment: of running requests, shared with the cache, cached, checkpoints."""
    series = result.series
    sizes = {pool.name: pool.unit_bytes for pool in result.pools}
    rows = {
        "slots": ([r + p for r, p in zip(series.running, series.paused, strict=True)], "slots"),
        "a request's own blocks": (series.own_blocks, "blocks"),
        "shared blocks": (series.shared_blocks, "blocks"),
        "cached blocks": (series.cached_blocks, "blocks"),
        "checkpoints": (series.checkpoints, "checkpoints"),
    }
    return {name: [n * sizes[pool] for n in counts] for name, (counts, pool) in rows.items()}


def time_chart(result: ReplayResult) -> Chart:
    """Memory above, requests below, over the time of the replay."""
    figure, (memory, requests) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    series = result.series
    stack_sizes(memory, [at * _NS_TO_S for at in series.at_ns], held_sizes(result))
    _draw_requests(requests, result)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    told = (
        f"{len(series.at_ns)} moments; at most {max(series.running, default=0):,} requests ran, "
        f"{max(series.waiting, default=0):,} waited and {max(series.paused, default=0):,} paused."
    )
    return Chart("replay", "Memory held and requests over time", told, figure)


def _draw_requests(axes: "Axes", result: ReplayResult) -> None:
    series = result.series
    seconds = [at * _NS_TO_S for at in series.at_ns]
    looks = {"running": "accent", "waiting": "warning", "paused": "bad"}
    for name, role in looks.items():
        axes.step(seconds, getattr(series, name), where="post", color=LIGHT[role], linewidth=1.1,
                  label=name)  # fmt: skip
    axes.set_ylabel("requests")
    axes.set_xlabel("seconds of the replay")
    axes.grid(axis="y")
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.set_ylim(0)
    if len(seconds) > 1:
        axes.set_xlim(seconds[0], seconds[-1])
