"""Which runs of a folder may go."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.report.index import Entry, Summary

_STATUSES = ("complete", "incomplete", "failed")


def choose(
    entries: Sequence[Entry],
    *,
    keep: int | None = None,
    older_than_days: int | None = None,
    status: str | None = None,
    now: datetime | None = None,
) -> list[Entry]:
    """Runs that fit every condition given, oldest first; never a file that is no record.

    Args:
        entries: The folder's.
        keep: All but the newest so many.
        older_than_days: Started longer ago than this.
        status: Of this status.
        now: The time; None takes the clock's.

    Raises:
        ConfigError: No such status.
    """
    if status is not None and status not in _STATUSES:
        raise ConfigError(f"--status {status}: choose {', '.join(_STATUSES)}.")
    before = _days_ago(now or datetime.now(UTC), older_than_days or 0)
    readable = [(entry, entry.summary) for entry in entries if entry.summary]
    readable.sort(key=lambda pair: _started(pair[1]))
    if keep is not None:
        readable = readable[: max(0, len(readable) - keep)]
    return [
        entry
        for entry, summary in readable
        if (older_than_days is None or _started(summary) < before)
        and (status is None or summary.status == status)
    ]


def remove(folder: Path, entries: Sequence[Entry]) -> None:
    """Remove the files of entries; one that is gone already is no trouble.

    Raises:
        RecordError: A file cannot be removed.
    """
    for entry in entries:
        try:
            (folder / entry.file).unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(
                f"{folder / entry.file} cannot be removed ({error.strerror})."
            ) from None


def _days_ago(now: datetime, days: int) -> datetime:
    """So long before ``now``, or as far back as dates go."""
    earliest = datetime.min.replace(tzinfo=UTC)
    return now - timedelta(days=min(days, (now - earliest).days))


def _started(summary: Summary) -> datetime:
    return datetime.fromisoformat(summary.started_utc)
