"""``dsv4kv bench transfer``: a prefill cache and a decode cache in two processes."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dsv4kv.cli.unrecorded import Ran, refuse_unused, run_points, watching
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.config.load import Point

NAME = "transfer"
"""What ``dsv4kv bench`` calls it."""


def bench_transfer(
    overrides: Sequence[str],
    axes: Sequence[str],
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
    import json
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
    if axes and (listen or connect):
        raise ConfigError("--axis sweeps runs on this machine: leave out --listen and --connect.")
    token = os.environ.get(TOKEN, "")
    if listen:
        serve(
            load_config(None, overrides, TransferConfig).config,
            parse_address(listen),
            token,
            lambda host, port: say(f"{LISTENING}{host}:{port} (Ctrl-C ends it)"),
        )
        return
    silent = quiet or json_ == "-"

    def run(point: "Point[TransferConfig]") -> Ran:
        with ExitStack() as stack:
            on_run = stack.enter_context(watching("transports", silent=silent))
            if connect:
                there = parse_address(connect), token
            else:
                swept = [f"{key}={json.dumps(value)}" for key, value in point.axis.items()]
                sets = [word for each in (*overrides, *swept) for word in ("--set", each)]
                there = stack.enter_context(prefill_process(sets))
            outcome = run_transfer(point.config, *there, on_run)
        wrong = [failure for run in outcome.runs for failure in run.failures]
        return Ran(report_transfer(point.config, outcome), dumps(point.config, outcome), wrong)

    run_points(TransferConfig, overrides, axes, run, json_, silent=silent)
