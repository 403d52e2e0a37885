"""``dsv4kv bench transfer``: a prefill cache and a decode cache in two processes."""

from collections.abc import Sequence
from contextlib import ExitStack

from dsv4kv.cli.records import write_json
from dsv4kv.view.console import open_console, say

NAME = "transfer"
"""What ``dsv4kv bench`` calls it."""


def bench_transfer(
    overrides: Sequence[str],
    unused: Sequence[str],
    json_: str | None,
    *,
    listen: str | None,
    connect: str | None,
    quiet: bool,
) -> None:
    """Be the prefill side at ``listen``, the decode side of ``connect``, or run both.

    ``unused`` are options that were given and mean nothing here. Fails if a bit is wrong.
    """
    import os

    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import load_config
    from dsv4kv.config.transfer import TransferConfig
    from dsv4kv.errors import ConfigError, VerificationError
    from dsv4kv.moving.prefill import serve
    from dsv4kv.moving.transfer import (
        LISTENING,
        TOKEN,
        dumps,
        parse_address,
        prefill_process,
        run_transfer,
    )
    from dsv4kv.view.terminal import show
    from dsv4kv.view.transfer import report_transfer

    if unused:
        raise ConfigError(
            f"{', '.join(unused)} means nothing to bench {NAME}: leave it out; what it runs is "
            "set by --set (keys: docs/transfer.md)."
        )
    if listen and connect:
        raise ConfigError("--listen and --connect: one machine listens, the other connects.")
    config = load_config(None, overrides, TransferConfig).config
    token = os.environ.get(TOKEN, "")
    if listen:
        serve(
            config,
            parse_address(listen),
            token,
            lambda host, port: say(f"{LISTENING}{host}:{port} (Ctrl-C ends it)"),
        )
        return
    silent = quiet or json_ == "-"
    with ExitStack() as stack:
        watcher = stack.enter_context(
            Watcher(open_console(stderr=True, quiet=silent), "bench", "transports")
        )
        if connect:
            address = parse_address(connect)
        else:
            sets = [word for setting in overrides for word in ("--set", setting)]
            address, token = stack.enter_context(prefill_process(sets))

        def on_run(name: str, done: int, total: int) -> None:
            watcher.name(f"bench {name}")
            watcher.reach(done, total)

        outcome = run_transfer(config, address, token, on_run)
    if not silent:
        show(report_transfer(config, outcome))
    if json_:
        write_json(dumps(config, outcome), json_)
    if wrong := [failure for run in outcome.runs for failure in run.failures]:
        raise VerificationError("\n".join(wrong))
