"""Records of any kind on a terminal or a page, lists of them, and rows for other programs."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsv4kv.runs import quantities as q
from dsv4kv.runs.points import Points
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.statistics import summarize
from dsv4kv.runs.store import Entry, Summary
from dsv4kv.view import table as tb
from dsv4kv.view.bench import bench_page, judge_run
from dsv4kv.view.profile import record_page
from dsv4kv.view.replay import list_replay_findings, replay_page


def run_page(record: RunRecord) -> tb.Page:
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


# ---- rows

Row = dict[str, Any]
"""``run_id``, ``config``, ``status``, ``device``, ``backend``, swept settings as ``axis.KEY``, and
``launch`` come first. Times are in ns, sizes in bytes, rates in GB/s (10^9 B/s).
``docs/record-schema.json`` explains all names."""
_KERNEL = ("calls", "total_ns", "median_ns", "min_ns", "useful_bytes", "counted_bytes")


def to_rows(record: RunRecord) -> list[Row]:
    """One row per quantity and launch; of a profile, one per kernel."""
    rows = []
    for case in record.cases:
        of_case = {
            "run_id": record.run_id,
            "config": record.config_source,
            "status": case.status,
            "device": case.device,
            "backend": case.backend,
            **{f"axis.{path}": value for path, value in case.axis.items()},
            "launch": case.launch,
        }
        for each in q.measured_in(case):
            summary, rate = summarize(each.samples_ns), each.rate_gbps
            row = {
                "name": each.quantity.name,
                "layer_type": each.quantity.layer_type,
                "temperature": each.quantity.temperature,
                "samples": summary.n,
                "median_ns": summary.median,
                "median_low_ns": summary.ci_low,
                "median_high_ns": summary.ci_high,
                "iqr_ns": summary.iqr,
                "min_ns": summary.minimum,
                "max_ns": summary.maximum,
                "p90_ns": summary.percentiles.get(90.0),
                "p99_ns": summary.percentiles.get(99.0),
                "bytes_per_call": each.bytes_per_call or None,
                "gbps": rate.value if rate else None,
                "gbps_half_width": rate.half_width if rate else None,
            }
            rows.append(of_case | row)
        table = case.profile.table if case.profile else None
        for kernel in table.kernels if table else []:
            facts = {name.replace("calls", "samples"): getattr(kernel, name) for name in _KERNEL}
            rows.append(of_case | {"name": kernel.name, "category": kernel.category} | facts)
    return rows


def to_csv(records: Sequence[RunRecord]) -> str:
    """Rows with a header; every swept setting is a column, empty where a run did not sweep it.

    A text that a spreadsheet would calculate, such as ``=1+1``, begins with an apostrophe.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
            return f"'{value}"
        return json.dumps(value) if isinstance(value, list | dict | bool) else value

    rows = [row for record in records for row in to_rows(record)]
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()
