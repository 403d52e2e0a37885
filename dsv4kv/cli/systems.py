"""``dsv4kv bench systems``: three ways to keep a KV cache, side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.cli.unrecorded import Ran, refuse_unused, run_points, watching

if TYPE_CHECKING:
    from dsv4kv.config.load import Point

NAME = "systems"
"""What ``dsv4kv bench`` calls them."""


def bench_systems(
    overrides: Sequence[str],
    axes: Sequence[str],
    unused: Sequence[str],
    json_: str | None,
    *,
    quiet: bool,
) -> None:
    """Run them, print or write what they gave, and fail if an output is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.bench.systems.run import dumps, problems, run_systems
    from dsv4kv.config.systems import SystemsConfig
    from dsv4kv.view.systems import report_systems

    refuse_unused(NAME, unused)
    silent = quiet or json_ == "-"

    def run(point: "Point[SystemsConfig]") -> Ran:
        with watching("systems", silent=silent) as on_system:
            outcomes = run_systems(point.config, on_system)
        return Ran(report_systems(outcomes), dumps(point.config, outcomes), problems(outcomes))

    run_points(SystemsConfig, overrides, axes, run, json_, silent=silent)
