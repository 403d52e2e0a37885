"""``dsv4kv report``: saved runs, shown again."""

from pathlib import Path

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.view.console import print_document, say

EPILOG = examples(
    "dsv4kv report results/A.json                    its tables again",
    "dsv4kv report results/A.json --html page.html   a page for a browser",
    "dsv4kv report results/A.json --export csv       rows for a spreadsheet",
)
_EXPORT = "Print rows instead: one per quantity and launch, or a table for people."


def report(
    runs: list[Path] | None = opt.argument("Records that `dsv4kv bench` saved.", "RUN.json…"),
    as_json: bool = opt.AS_JSON,
    export: opt.Text = opt.option(_EXPORT, "csv|jsonl|markdown"),
    html: Path | None = opt.HTML,
    charts: Path | None = opt.option(
        "Write all charts as SVG and PNG.", "FOLDER", rare=True, callback=opt.to_folder
    ),
    verbose: bool = opt.VERBOSE,
    schema: bool = opt.flag("--schema", "Print the JSON schema of records.", rare=True),
) -> None:
    """Show saved runs again: machine, cache, rates, latencies and checks."""
    from dsv4kv.runs.store import load_record, schema_text
    from dsv4kv.view.html import write_charts, write_page
    from dsv4kv.view.runs import runs_page

    forms = {"--json": as_json, "--export": export, "--html or --charts": html or charts}
    chosen = [form for form, given in (forms | {"--schema": schema}).items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} were given: choose one of them.")
    if schema:
        print_document(schema_text())
        return
    if not runs:
        raise RecordError("no record was named: give a file that `dsv4kv bench` saved.")
    if not (html or charts):
        _print(runs, export, as_json=as_json, verbose=verbose)
        return
    page = runs_page([load_record(run) for run in runs])
    if html:
        write_page(page, html)
        say(f"page: {html}", err=True)
    if charts:
        written = write_charts(page.charts(), charts)
        say(f"charts: {len(written)} files in {charts}", err=True)


def _print(runs: list[Path], export: str | None, *, as_json: bool, verbose: bool) -> None:
    from dsv4kv.runs.store import dumps, load_record
    from dsv4kv.view import exports
    from dsv4kv.view.render import show
    from dsv4kv.view.runs import report_record

    if export:
        writers = {
            "csv": exports.to_csv,
            "jsonl": exports.to_json_lines,
            "markdown": exports.to_markdown,
        }
        if export not in writers:
            raise ConfigError(f"--export {export}: choose {', '.join(writers)}.")
        say(writers[export]([load_record(run) for run in runs]), end="")
        return
    for run in runs:
        record = load_record(run)
        if as_json:
            print_document(dumps(record))
        else:
            show(report_record(record, run, verbose=verbose))
