"""``dsv4kv bench transfer``: a prefill cache and a decode cache in two processes."""

from collections.abc import Sequence
from contextlib import ExitStack

from dsv4kv.cli.unrecorded import finish, refuse_unused, watching
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

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

    from dsv4kv.config.load import load_config
    from dsv4kv.config.transfer import TransferConfig
    from dsv4kv.moving.prefill import serve
    from dsv4kv.moving.transfer import (
        LISTENING,
        TOKEN,
        dumps,
        parse_address,
        prefill_process,
        run_transfer,
    )
    from dsv4kv.view.transfer import report_transfer

    refuse_unused(NAME, unused)
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
        on_run = stack.enter_context(watching("transports", silent=silent))
        if connect:
            address = parse_address(connect)
        else:
            sets = [word for setting in overrides for word in ("--set", setting)]
            address, token = stack.enter_context(prefill_process(sets))
        outcome = run_transfer(config, address, token, on_run)
    finish(
        lambda: report_transfer(config, outcome),
        lambda: dumps(config, outcome),
        [failure for run in outcome.runs for failure in run.failures],
        json_,
        silent=silent,
    )
