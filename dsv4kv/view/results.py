"""Saved runs, as ``dsv4kv report list`` shows them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dsv4kv.runs.points import Points
from dsv4kv.runs.store import Entry, Summary
from dsv4kv.view.quantity import quantity, size
from dsv4kv.view.table import ABSENT, Cell, Columns, Number, Read, Table


def runs_table(entries: Sequence[Entry]) -> Table:
    """A row per record, in the order given."""

    def known(read: Callable[[Summary], Cell | str], absent: Cell | str = ABSENT) -> Read:
        return lambda entry: read(entry.summary) if entry.summary else absent

    columns: Columns = [
        ("run", lambda e: Path(e.file).stem if e.summary else e.file),
        ("status", known(lambda found: found.status, "unreadable")),
        ("config", known(lambda found: found.config)),
        ("backend", known(lambda found: ", ".join(found.backends))),
        ("cases", known(lambda found: quantity(found.cases), Number(ABSENT))),
        ("launches", known(lambda found: quantity(found.launches), Number(ABSENT))),
        ("size", lambda entry: size(entry.size_bytes)),
        ("git", known(lambda found: (found.git_sha or "")[:12], "")),
    ]
    return Table("Runs", columns, entries, rest="--json")


def unfinished_table(sweeps: Sequence[Points]) -> Table:
    """Sweeps that were killed, or go on in another process."""
    columns: Columns = [
        ("points done", lambda sweep: Number(f"{len(sweep.cases):,} of {sweep.asked.count:,}")),
        ("resume with", lambda sweep: sweep.resume),
    ]
    caption = "discard: dsv4kv report prune --status unfinished --yes"
    return Table("Unfinished sweeps", columns, sweeps, caption=caption)
