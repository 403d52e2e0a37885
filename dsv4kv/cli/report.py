"""``dsv4kv report``: saved runs, shown again."""

from pathlib import Path
from typing import Annotated

import typer

from dsv4kv.cli.records import Verbose
from dsv4kv.cli.targets import to_folder, to_page
from dsv4kv.view.console import print_document, say

EPILOG = """\
[bold]Examples[/bold]

dsv4kv report results/A.json                    its tables again

dsv4kv report results/A.json --html page.html   a page for a browser

dsv4kv report results/A.json --export csv       rows for a spreadsheet
"""


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN.json…", help="Records that `dsv4kv bench` saved.", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON instead of tables.")
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="csv|jsonl|markdown",
            help="Print rows instead: one per quantity and launch, or a table for people.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE.html",
            help="Write a page to show: one file for a browser.",
            callback=to_page,
        ),
    ] = None,
    charts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write every chart there, as SVG and as PNG.",
            callback=to_folder,
        ),
    ] = None,
    verbose: Verbose = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of records.")
    ] = False,
) -> None:
    """Show saved runs again: machine, cache, rates, latencies and checks."""
    from dsv4kv.errors import RecordError

    _refuse_two(as_json, export, html or charts, schema)
    if schema:
        from dsv4kv.record.store import schema_text

        print_document(schema_text())
        return
    if not runs:
        raise RecordError("no record was named: give a file that `dsv4kv bench` saved.")
    if html or charts:
        _draw(runs, html, charts)
    elif export:
        _export(runs, export)
    else:
        _show(runs, as_json=as_json, verbose=verbose)


def _refuse_two(*given: object) -> None:
    from dsv4kv.errors import ConfigError

    forms = ("--json", "--export", "--html or --charts", "--schema")
    chosen = [form for form, value in zip(forms, given, strict=True) if value]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} were given: choose one of them.")


def _show(runs: list[Path], *, as_json: bool, verbose: bool) -> None:
    from dsv4kv.record.store import dumps, load_record
    from dsv4kv.view.render import show
    from dsv4kv.view.runs import report_record

    for run in runs:
        record = load_record(run)
        if as_json:
            print_document(dumps(record))
        else:
            show(report_record(record, run, verbose=verbose))


def _draw(runs: list[Path], html: Path | None, charts: Path | None) -> None:
    from dsv4kv.record.store import load_record
    from dsv4kv.view.html import write_charts, write_page
    from dsv4kv.view.runs import runs_page

    page = runs_page([load_record(run) for run in runs])
    if html:
        write_page(page, html)
        say(f"page: {html}", err=True)
    if charts:
        written = write_charts(page.charts(), charts)
        say(f"charts: {len(written)} files in {charts}", err=True)


def _export(runs: list[Path], name: str) -> None:
    from dsv4kv.errors import ConfigError
    from dsv4kv.record.store import load_record
    from dsv4kv.view import exports

    writers = {
        "csv": exports.to_csv,
        "jsonl": exports.to_json_lines,
        "markdown": exports.to_markdown,
    }
    if name not in writers:
        raise ConfigError(f"--export {name}: choose {', '.join(writers)}.")
    say(writers[name]([load_record(run) for run in runs]), end="")
