"""``dsv4kv bench systems``: three ways to keep a KV cache, side by side."""

from collections.abc import Sequence

from dsv4kv.cli.unrecorded import finish, refuse_unused, watching

NAME = "systems"
"""What ``dsv4kv bench`` calls them."""


def bench_systems(
    overrides: Sequence[str], unused: Sequence[str], json_: str | None, *, quiet: bool
) -> None:
    """Run them, print or write what they gave, and fail if an output is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.config.load import load_config
    from dsv4kv.config.systems import SystemsConfig
    from dsv4kv.systems.run import dumps, problems, run_systems
    from dsv4kv.view.systems import report_systems

    refuse_unused(NAME, unused)
    config = load_config(None, overrides, SystemsConfig).config
    silent = quiet or json_ == "-"
    with watching("systems", silent=silent) as on_system:
        outcomes = run_systems(config, on_system)
    finish(
        lambda: report_systems(outcomes),
        lambda: dumps(config, outcomes),
        problems(outcomes),
        json_,
        silent=silent,
    )
