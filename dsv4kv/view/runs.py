"""Records of any kind on a terminal or a page, and lists of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsv4kv.runs.points import Points
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import Entry, Summary
from dsv4kv.view import table as tb
from dsv4kv.view.bench import bench_page, judge_run
from dsv4kv.view.profile import record_page
from dsv4kv.view.replay import list_replay_findings, replay_page


def run_page(record: RunRecord) -> tb.Page:
    """Everything that a record has to show."""
    if any(case.replay for case in record.cases):
        return replay_page(record)
    if any(case.profile and case.profile.table for case in record.cases):
        return record_page(record)
    return bench_page(record)


def runs_page(records: Sequence[RunRecord]) -> tb.Page:
    """Several records on one page, below each other."""
    if len(records) == 1:
        return run_page(records[0])
    pages, sections = [run_page(record).merged() for record in records], list[tb.Section]()
    for record, page in zip(records, pages, strict=True):
        sections.append(tb.Section(f"{record.run_id}: {page.title}", page.answer))
        sections += [replace(section, level=3) for section in page.sections]
    whats = "; ".join(dict.fromkeys(page.title for page in pages))
    return tb.Page(
        f"{len(records)} runs: {whats}", [tb.Text(record.run_id) for record in records], sections
    )


def report_record(
    record: RunRecord, path: Path | None = None, *, verbose: bool = False, quiet: bool = False
) -> Iterable[tb.Part]:
    """The answer; with ``verbose`` all details, with ``quiet`` only problems.

    ``path`` is where the record is saved, for the command that shows more.
    """
    replayed = any(case.replay for case in record.cases)
    if quiet:
        findings = list_replay_findings(record) if replayed else judge_run(record)
        return [found for found in findings if found.is_problem]
    parts = list(run_page(record).parts(verbose=verbose))
    if verbose or path is None or replayed:
        return parts
    return [*parts, "", tb.Command.of("dsv4kv", "report", path, "--verbose")]


def runs_table(entries: Sequence[Entry]) -> tb.Table:
    """A row per record, in the order given."""

    def known(read: Callable[[Summary], Any], absent: str = tb.ABSENT) -> tb.Read:
        return lambda entry: read(entry.summary) if entry.summary else absent

    columns: tb.Columns = [
        ("run", lambda e: Path(e.file).stem if e.summary else e.file),
        ("status", known(lambda found: found.status, "unreadable")),
        ("config", known(lambda found: found.config)),
        ("backend", known(lambda found: ", ".join(found.backends))),
        ("cases", known(lambda found: found.cases)),
        ("launches", known(lambda found: found.launches)),
        ("size", lambda entry: tb.size(entry.size_bytes)),
        ("git", known(lambda found: (found.git_sha or "")[:12], "")),
    ]
    return tb.Table("Runs", columns, entries, rest="--json")


def unfinished_table(sweeps: Sequence[Points]) -> tb.Table:
    """Sweeps that were killed, or go on in another process."""
    columns: tb.Columns = [
        ("file", lambda sweep: str(sweep.path)),
        ("points done", lambda sweep: tb.Number(f"{len(sweep.cases):,} of {sweep.asked.count:,}")),
        ("resume with", lambda sweep: sweep.resume),
    ]
    return tb.Table("Unfinished sweeps", columns, sweeps)
