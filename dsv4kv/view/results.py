"""Saved runs, as ``dsv4kv results list`` shows them."""

from collections.abc import Sequence
from pathlib import Path

from dsv4kv.runs.points import Points
from dsv4kv.runs.store import Entry
from dsv4kv.units import format_bytes
from dsv4kv.view.table import ABSENT, Row, Table, names, numbers, prose


def runs_table(entries: Sequence[Entry]) -> Table:
    """A row per record, in the order given."""
    return Table(
        "Runs",
        [
            *names("run", "status"),
            *names("config", "backend", minor=True),
            *numbers("cases", "launches", "size", minor=True),
            *names("git", minor=True),
        ],
        [_row(entry) for entry in entries],
    )


def _row(entry: Entry) -> Row:
    size, summary = format_bytes(entry.size_bytes), entry.summary
    if summary is None:
        return [entry.file, "unreadable", *[ABSENT] * 4, size, ""]
    return [
        Path(entry.file).stem,  # the name that `results show` knows it by
        summary.status,
        summary.config,
        ", ".join(summary.backends),
        f"{summary.cases:,}",
        f"{summary.launches:,}",
        size,
        (summary.git_sha or "")[:12],
    ]


def unfinished_table(sweeps: Sequence[Points]) -> Table:
    """Sweeps that were killed, or go on in another process."""
    rows = [
        (
            f"{len(sweep.cases):,} of {sweep.asked.count:,}",
            f"dsv4kv {sweep.asked.command} --resume {sweep.asked.run_id}",
        )
        for sweep in sweeps
    ]
    return Table("Unfinished sweeps", [*numbers("points done"), *prose("continued by")], rows)
