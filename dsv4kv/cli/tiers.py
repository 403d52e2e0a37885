"""``dsv4kv bench tiers``: prefixes in host memory and on disk."""

from collections.abc import Sequence

from dsv4kv.cli.unrecorded import finish, refuse_unused, watching

NAME = "tiers"
"""What ``dsv4kv bench`` calls it."""


def bench_tiers(
    overrides: Sequence[str], unused: Sequence[str], json_: str | None, *, quiet: bool
) -> None:
    """Move prefixes, print or write what it took, and fail if a bit is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.config.load import load_config
    from dsv4kv.config.tiers import TiersConfig
    from dsv4kv.moving.tiers import dumps, run_tiers
    from dsv4kv.view.tiers import report_tiers

    refuse_unused(NAME, unused, "moves")
    config = load_config(None, overrides, TiersConfig).config
    silent = quiet or json_ == "-"
    with watching("prefixes", silent=silent) as on_step:
        outcome = run_tiers(config, on_step)
    finish(
        lambda: report_tiers(outcome),
        lambda: dumps(config, outcome),
        outcome.failures,
        json_,
        silent=silent,
    )
