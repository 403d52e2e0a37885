"""``dsv4kv bench tiers``: prefixes in host memory and on disk."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.cli.unrecorded import Ran, refuse_unused, run_points, watching

if TYPE_CHECKING:
    from dsv4kv.config.load import Point

NAME = "tiers"
"""What ``dsv4kv bench`` calls it."""


def bench_tiers(
    overrides: Sequence[str],
    axes: Sequence[str],
    unused: Sequence[str],
    json_: str | None,
    *,
    quiet: bool,
) -> None:
    """Move prefixes, print or write what it took, and fail if a bit is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.config.tiers import TiersConfig
    from dsv4kv.moving.tiers import dumps, run_tiers
    from dsv4kv.view.tiers import report_tiers

    refuse_unused(NAME, unused, "moves")
    silent = quiet or json_ == "-"

    def run(point: "Point[TiersConfig]") -> Ran:
        with watching("prefixes", silent=silent) as on_step:
            outcome = run_tiers(point.config, on_step)
        return Ran(report_tiers(outcome), dumps(point.config, outcome), outcome.failures)

    run_points(TiersConfig, overrides, axes, run, json_, silent=silent)
