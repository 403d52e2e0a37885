"""A side of a comparison: the records that were named, and their launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.report.axes import axis_text
from dsv4kv.report.quantities import Measured, Quantity, measured_in
from dsv4kv.report.record import Case, RunRecord
from dsv4kv.report.store import load_record


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        name: As it was named.
        records: Runs of it; every launch of every run counts.
    """

    name: str
    records: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Launched:
    """A quantity as one launch measured it.

    Attributes:
        measured: Its samples.
        process: Which record of the side and which launch of it: tells launches apart.
        began_s: When that launch began, in seconds.
        pair: Shared with the launch of the other side whose steps took turns with its own; empty
            where none did.
    """

    measured: Measured
    process: tuple[int, int]
    began_s: float
    pair: str = ""


def load_side(text: str) -> Side:
    """Read a side: a record, several separated by commas, or a folder of them.

    Raises:
        ConfigError: A comma with nothing before or behind it.
        RecordError: A file that cannot be read, or a folder without records.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{text!r} names nothing beside a comma: give A1.json,A2.json.")
    paths = [path for part in parts for path in _expand(Path(part))]
    return Side(text, tuple(load_record(path) for path in paths))


def list_launched(side: Side) -> dict[Quantity, list[Launched]]:
    """What the launches of a side measured, of cases that ran to their end."""
    found: dict[Quantity, list[Launched]] = {}
    for index, record in enumerate(side.records):
        for case in record.cases:
            if case.status == "complete":
                began_s, process = _began_s(record, case.launch), (index, case.launch)
                pair = _pair(record, case)
                for measured in measured_in(case):
                    launched = Launched(measured, process, began_s, pair)
                    found.setdefault(measured.quantity, []).append(launched)
    return found


def count_launches(side: Side) -> int:
    """Launches that left a case which ran to its end."""
    return sum(
        len({case.launch for case in record.cases if case.status == "complete"})
        for record in side.records
    )


def took_turns(before: Side, after: Side) -> bool:
    """Whether launches of both sides took turns with each other."""
    first, second = (
        {_pair(record, case) for record in side.records for case in record.cases}
        for side in (before, after)
    )
    return any(first & second)


def tell_losses(side: Side) -> Iterator[str]:
    """A sentence for each launch and case of a side that cannot be compared."""
    for record in side.records:
        told_by_cases = {case.launch for case in record.cases}
        for launch in record.launches:
            if launch.status != "complete" and launch.launch not in told_by_cases:
                told = launch.status.replace("_", " ")
                yield f"{side.name}: launch {launch.launch} {told}: {launch.error or 'Ctrl-C'}"
        for case in record.cases:
            if case.status != "complete":
                where = f"{axis_text(case)}, " if case.axis else ""
                yield (
                    f"{side.name}: {where}launch {case.launch} {case.status}: "
                    f"{case.error or 'stopped before the end'}"
                )


def _expand(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.glob("*.json") if not each.name.startswith("."))
    if not found:
        raise RecordError(f"{path} holds no records: name a folder with .json files of bench.")
    return found


def _pair(record: RunRecord, case: Case) -> str:
    """Launches of a pair that did not take turns, as one of them knew of none, are no pair."""
    alternated = case.totals is not None and case.totals.steps_in_turns > 0
    return record.launches[case.launch].pair if record.launches and alternated else ""


def _began_s(record: RunRecord, launch: int) -> float:
    text = record.launches[launch].started_utc if record.launches else record.started_utc
    return datetime.fromisoformat(text).timestamp()
