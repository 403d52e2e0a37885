"""``dsv4kv report`` and ``config``: saved runs and configurations, shown, exported and listed."""

from pathlib import Path

from dsv4kv.cli import command, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.view.console import one_line, print_document, say

_RUNS = "Run records: a file, the beginning or end of a run's name, or last."
_FOLDER = opt.rare("Folder of run records.", "FOLDER", default=opt.RESULTS)


@command(
    "report",
    "dsv4kv report results/A.json                    its tables again",
    "dsv4kv report last --html page.html             the newest run, as a page for a browser",
    "dsv4kv report results/A.json --csv              rows for a spreadsheet",
)
def report(
    runs: opt.Texts = opt.argument(_RUNS, "RUN…"),
    as_json: bool = opt.AS_JSON,
    as_csv: bool = opt.flag("--csv", "Print rows as CSV: one per quantity and launch."),
    html: Path | None = opt.HTML,
    folder: Path = _FOLDER,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Show and export saved runs, by file or by name.

    `dsv4kv report list` lists them.
    """
    from dsv4kv.runs.store import dumps, load_record
    from dsv4kv.view.render import show
    from dsv4kv.view.runs import report_record, runs_page, to_csv

    forms = {"--json": as_json, "--csv": as_csv, "--html": html}
    chosen = [form for form, given in forms.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} were given: choose one of them.")
    if not runs:
        raise RecordError("no record was named: give a file that `dsv4kv bench` saved.")
    paths = [_find(run, folder) for run in runs]
    if html:
        opt.keep_input("--html", html, paths)
    records = [load_record(path) for path in paths]
    if as_csv:
        say(to_csv(records), end="")
    elif html:
        opt.write_page(runs_page(records), html)
    else:
        for record, path in zip(records, paths, strict=True):
            if as_json:
                print_document(dumps(record))
            else:
                show(report_record(record, path, verbose=verbose))


def _find(run: str, folder: Path) -> Path:
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


@command("report list", "dsv4kv report list")
def list_runs(folder: Path = _FOLDER, as_json: bool = opt.AS_JSON) -> None:
    """List saved runs, oldest first, and unfinished sweeps."""
    from dsv4kv.runs import points, store
    from dsv4kv.view import render, runs

    entries = store.list_entries(folder)
    if as_json:
        opt.print_json([entry.model_dump(mode="json") for entry in entries])
        return
    render.show([runs.runs_table(entries)])
    if sweeps := points.list_unfinished(folder):
        render.show(["", runs.unfinished_table(sweeps)])
    for entry in entries:
        if entry.problem:
            say(one_line(f"warning: {entry.problem}"), err=True)


group("config", "dsv4kv config show smoke > mine.yaml")


@command("config show", "dsv4kv config show smoke > mine.yaml")
def show(
    source: opt.Text = opt.argument("A YAML file or a shipped name.", "CONFIG", shown="default"),
    overrides: opt.Texts = opt.SET,
) -> None:
    """Print the resolved configuration: every key with its value, as documented YAML."""
    from dsv4kv.config import keys, load

    say(keys.render_yaml(load.load_config(source, overrides or ()).config), end="")


@command("config schema", "dsv4kv config schema --json")
def schema(as_json: bool = opt.flag("--json", "Print the JSON schema.")) -> None:
    """Explain every key: type, what is allowed, default, meaning."""
    from dsv4kv.config.bench import BenchConfig
    from dsv4kv.view.config import schema_table

    opt.tell([schema_table()], BenchConfig.model_json_schema(), as_json=as_json)
