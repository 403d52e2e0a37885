"""``dsv4kv results``: the folder of saved runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from dsv4kv.cli import examples, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.view.console import one_line, say

if TYPE_CHECKING:
    from dsv4kv.runs.store import Entry

app = group("List, show and prune saved runs.", "dsv4kv results list")

_FOLDER = opt.option("Folder of records.", default=opt.RESULTS, rare=True)


@app.command("list", epilog=examples("dsv4kv results list --limit 10"))
def list_(
    folder: Path = _FOLDER,
    as_json: bool = opt.AS_JSON,
    limit: int = opt.option(
        "Show the newest N; 0 shows all. JSON has all.", "N", min=0, default=100
    ),
) -> None:
    """List saved runs, oldest first, and sweeps that are not finished."""
    from dsv4kv.runs.points import list_unfinished
    from dsv4kv.runs.store import list_entries
    from dsv4kv.view.render import show as show_parts
    from dsv4kv.view.results import runs_table, unfinished_table

    entries = list_entries(folder)
    if as_json:
        opt.print_json([entry.model_dump(mode="json") for entry in entries])
        return
    shown, sweeps = entries[-limit:], list_unfinished(folder)
    show_parts([runs_table(shown)])
    if sweeps:
        show_parts(["", unfinished_table(sweeps)])
    if len(shown) < len(entries):
        say(f"{len(entries) - len(shown):,} older runs: --limit 0 shows all.", err=True)
    for entry in shown:
        if entry.problem:
            say(one_line(f"warning: {entry.problem}"), err=True)


@app.command(epilog=examples("dsv4kv results show last"))
def show(
    run: str = opt.required("Beginning or end of a run's name, or last.", "RUN"),
    folder: Path = _FOLDER,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Show a run of the folder again, as `dsv4kv report` does."""
    from dsv4kv.runs.store import list_entries, load_record
    from dsv4kv.view.render import show as show_parts
    from dsv4kv.view.runs import report_record

    entry = _find(list_entries(folder), run, folder)
    path = folder / entry.file
    show_parts(report_record(load_record(path), path, verbose=verbose))


@app.command(epilog=examples("dsv4kv results prune --older-than 30 --yes"))
def prune(
    folder: Path = _FOLDER,
    keep: int | None = opt.option("Keep the newest N.", "N", min=0),
    older_than: int | None = opt.option("Only older runs.", "DAYS", min=0, rare=True),
    status: opt.Text = opt.option(
        "Only runs of this status.", "complete|incomplete|failed", rare=True
    ),
    yes: bool = opt.flag("--yes", "Delete; else they are only listed."),
) -> None:
    """Remove runs that fit every option given; baselines and unreadable files stay."""
    from dsv4kv.runs.store import choose, list_entries, remove

    if keep is None and older_than is None and status is None:
        raise ConfigError("nothing says what to remove: give --keep, --older-than or --status.")
    entries = list_entries(folder)
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


def _find(entries: "list[Entry]", run: str, folder: Path) -> "Entry":
    """The entry of that name; refuses none and several."""
    readable = [entry for entry in entries if entry.summary]
    if run == "last" and readable:
        return readable[-1]
    names = {Path(entry.file).stem: entry for entry in readable}
    found = [name for name in names if name.startswith(run) or name.endswith(run)]
    found = [run] if run in names else found
    if len(found) == 1:
        return names[found[0]]
    matches = f"fits {', '.join(found)}" if found else f"fits no run in {folder}"
    raise RecordError(f"{run} {matches}: `dsv4kv results list` names them.")
