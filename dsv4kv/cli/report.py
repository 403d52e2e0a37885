"""``dsv4kv report``: saved runs shown, exported, listed and pruned."""

from pathlib import Path
from typing import TYPE_CHECKING

from dsv4kv.cli import examples, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.view.console import one_line, print_document, say

if TYPE_CHECKING:
    from dsv4kv.runs.schema import RunRecord

_SHOWN = (
    "dsv4kv report results/A.json                    its tables again",
    "dsv4kv report last --html page.html             the newest run, as a page for a browser",
    "dsv4kv report results/A.json --export csv       rows for a spreadsheet",
)
_RUNS = "Run records: a file, the beginning or end of a run's name, or last."
_EXPORT = "Print rows instead: one per quantity and launch, or a Markdown table."
_FOLDER = opt.option("Folder of run records.", "FOLDER", default=opt.RESULTS, rare=True)

app = group("Show and export saved runs, by file or by name.", _SHOWN[0])


@app.command("report", epilog=examples(*_SHOWN))
def report(
    runs: opt.Texts = opt.argument(_RUNS, "RUN…"),
    as_json: bool = opt.AS_JSON,
    export: opt.Text = opt.option(_EXPORT, "csv|jsonl|markdown"),
    html: Path | None = opt.HTML,
    charts: Path | None = opt.option(
        "Write all charts as SVG and PNG.", "FOLDER", rare=True, callback=opt.to_folder
    ),
    folder: Path = _FOLDER,
    verbose: bool = opt.VERBOSE,
    schema: bool = opt.flag("--schema", "Print the JSON schema of records.", rare=True),
) -> None:
    """Show and export saved runs, by file or by name.

    `dsv4kv report list` lists them, `dsv4kv report prune` deletes some.
    """
    from dsv4kv.runs.store import dumps, load_record, schema_text
    from dsv4kv.view import exports
    from dsv4kv.view.render import show
    from dsv4kv.view.runs import report_record

    forms = {"--json": as_json, "--export": export, "--html or --charts": html or charts}
    chosen = [form for form, given in (forms | {"--schema": schema}).items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} were given: choose one of them.")
    if schema:
        print_document(schema_text())
        return
    if not runs:
        raise RecordError("no record was named: give a file that `dsv4kv bench` saved.")
    writers = {
        "csv": exports.to_csv,
        "jsonl": exports.to_json_lines,
        "markdown": exports.to_markdown,
    }
    if export and export not in writers:
        raise ConfigError(f"--export {export}: choose {', '.join(writers)}.")
    paths = [_find(run, folder) for run in runs]
    records = [load_record(path) for path in paths]
    if export:
        say(writers[export](records), end="")
    elif html or charts:
        _write(records, html, charts)
    else:
        for record, path in zip(records, paths, strict=True):
            if as_json:
                print_document(dumps(record))
            else:
                show(report_record(record, path, verbose=verbose), cut=not verbose)


def _write(records: "list[RunRecord]", html: Path | None, charts: Path | None) -> None:
    from dsv4kv.view.html import write_charts
    from dsv4kv.view.runs import runs_page

    page = runs_page(records)
    if html:
        opt.write_page(page, html)
    if charts:
        written = write_charts(page.charts(), charts)
        say(f"charts: {len(written)} files in {charts}", err=True)


def _find(run: str, folder: Path) -> Path:
    """The record of that file or name; refuses several."""
    from dsv4kv.runs.store import list_entries

    path = Path(run)
    if path.suffix == ".json" or path.exists() or not folder.is_dir():
        return path
    names = [Path(each.file).stem for each in list_entries(folder) if each.summary]
    found = [name for name in names if name.startswith(run) or name.endswith(run)]
    found = names[-1:] if run == "last" else [run] if run in names else found
    if len(found) != 1:
        matches = f"fits {', '.join(found)}" if found else f"is no file, and no run in {folder}"
        raise RecordError(f"{run} {matches}: `dsv4kv report list` names them.")
    return folder / f"{found[0]}.json"


@app.command("report list", epilog=examples("dsv4kv report list --limit 10"))
def list_runs(
    folder: Path = _FOLDER,
    as_json: bool = opt.AS_JSON,
    limit: int = opt.option(
        "Show the newest N; 0 shows all. JSON has all.", "N", rare=True, min=0, default=100
    ),
) -> None:
    """List saved runs, oldest first, and unfinished sweeps."""
    from dsv4kv.runs.points import list_unfinished
    from dsv4kv.runs.store import list_entries
    from dsv4kv.view.render import show
    from dsv4kv.view.runs import runs_table, unfinished_table

    entries = list_entries(folder)
    if as_json:
        opt.print_json([entry.model_dump(mode="json") for entry in entries])
        return
    shown, sweeps = entries[-limit:], list_unfinished(folder)
    show([runs_table(shown)])
    if sweeps:
        show(["", unfinished_table(sweeps)])
    if len(shown) < len(entries):
        say(f"{len(entries) - len(shown):,} older runs: --limit 0 shows all.", err=True)
    for entry in shown:
        if entry.problem:
            say(one_line(f"warning: {entry.problem}"), err=True)


@app.command("report prune", epilog=examples("dsv4kv report prune --keep 30 --yes"))
def prune(
    folder: Path = _FOLDER,
    keep: int | None = opt.option("Keep the newest N.", "N", min=0),
    older_than: int | None = opt.option("Only older runs.", "DAYS", min=0, rare=True),
    status: opt.Text = opt.option(
        "Only runs of this status; unfinished: sweeps with points and no record.",
        "complete|incomplete|failed|unfinished",
        rare=True,
    ),
    yes: bool = opt.flag("--yes", "Actually delete; default: a dry run."),
) -> None:
    """Delete the saved runs that match every option given.

    Unreadable files stay.
    """
    from dsv4kv.runs.points import as_entry, list_unfinished
    from dsv4kv.runs.store import UNFINISHED, choose, list_entries, remove

    if keep is None and older_than is None and status is None:
        raise ConfigError("nothing says what to remove: give --keep, --older-than or --status.")
    entries = list_entries(folder)
    if status == UNFINISHED:
        entries = [as_entry(sweep) for sweep in list_unfinished(folder)]
    chosen = choose(entries, keep=keep, older_than_days=older_than, status=status)
    for entry in chosen:
        if yes:
            remove(folder, [entry])
        say(one_line(f"{'removed' if yes else 'would remove'} {folder / entry.file}"))
    if not chosen:
        count = sum(entry.summary is not None for entry in entries)
        say(f"nothing to remove: none of {count:,} runs fits.", err=True)
    elif not yes:
        sentence = "1 run: --yes removes it." if len(chosen) == 1 else ""
        say(sentence or f"{len(chosen)} runs: --yes removes them.", err=True)
