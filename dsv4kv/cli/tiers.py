"""``dsv4kv bench tiers``: prefixes in host memory and on disk."""

from collections.abc import Sequence

from dsv4kv.cli.records import write_json
from dsv4kv.view.console import open_console

NAME = "tiers"
"""What ``dsv4kv bench`` calls it."""


def bench_tiers(
    overrides: Sequence[str], unused: Sequence[str], json_: str | None, *, quiet: bool
) -> None:
    """Move prefixes, print or write what it took, and fail if a bit is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import load_config
    from dsv4kv.config.tiers import TiersConfig
    from dsv4kv.errors import ConfigError, VerificationError
    from dsv4kv.moving.tiers import dumps, run_tiers
    from dsv4kv.view.terminal import show
    from dsv4kv.view.tiers import report_tiers

    if unused:
        raise ConfigError(
            f"{', '.join(unused)} means nothing to bench {NAME}: leave it out; what it moves is "
            "set by --set (keys: docs/tiers.md)."
        )
    config = load_config(None, overrides, TiersConfig).config
    silent = quiet or json_ == "-"
    with Watcher(open_console(stderr=True, quiet=silent), "bench", "prefixes") as watcher:

        def on_step(name: str, done: int, total: int) -> None:
            watcher.name(f"bench {name}")
            watcher.reach(done, total)

        outcome = run_tiers(config, on_step)
    if not silent:
        show(report_tiers(outcome))
    if json_:
        write_json(dumps(config, outcome), json_)
    if outcome.failures:
        raise VerificationError("\n".join(outcome.failures))
