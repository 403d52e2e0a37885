"""``dsv4kv bench systems``: three ways to keep a KV cache, side by side."""

from collections.abc import Sequence

from dsv4kv.cli.records import write_json
from dsv4kv.view.console import open_console

NAME = "systems"
"""What ``dsv4kv bench`` calls them."""


def bench_systems(
    overrides: Sequence[str], unused: Sequence[str], json_: str | None, *, quiet: bool
) -> None:
    """Run them, print or write what they gave, and fail if an output is wrong.

    ``unused`` are options that were given and mean nothing here.
    """
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import load_config
    from dsv4kv.config.systems import SystemsConfig
    from dsv4kv.errors import ConfigError, VerificationError
    from dsv4kv.systems.run import dumps, problems, run_systems
    from dsv4kv.view.systems import report_systems
    from dsv4kv.view.terminal import show

    if unused:
        raise ConfigError(
            f"{', '.join(unused)} means nothing to bench {NAME}: leave it out; what it runs is "
            "set by --set (keys: docs/systems.md)."
        )
    config = load_config(None, overrides, SystemsConfig).config
    silent = quiet or json_ == "-"
    with Watcher(open_console(stderr=True, quiet=silent), "bench", "systems") as watcher:

        def on_system(name: str, done: int, total: int) -> None:
            watcher.name(f"bench {name}")
            watcher.reach(done, total)

        outcomes = run_systems(config, on_system)
    if not silent:
        show(report_systems(outcomes))
    if json_:
        write_json(dumps(config, outcomes), json_)
    if wrong := problems(outcomes):
        raise VerificationError("\n".join(wrong))
