"""``dsv4kv report``: a saved run, told again."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN.json", help="Record that `dsv4kv bench` saved.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON instead of tables.")
    ] = False,
) -> None:
    """Show a saved run again: its machine, cache, rates, latencies and checks."""
    from dsv4kv.cli.console import open_console
    from dsv4kv.report.render import render_record
    from dsv4kv.report.store import dumps, load_record

    record = load_record(run)
    if as_json:
        typer.echo(dumps(record), nl=False)
    else:
        render_record(record, open_console())
