"""A side of a comparison: the records that were named, and their launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.runs.quantities import Measured, Quantity, axis_text, measured_in
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.store import load_record


@dataclass(frozen=True)
class Side:
    """One side."""

    name: str
    records: tuple[RunRecord, ...]  # runs of it; every launch of every run counts


@dataclass(frozen=True)
class Launched:
    """A quantity as one launch measured it."""

    measured: Measured
    process: tuple[int, int]
    """Which record of the side and which launch of it: identifies a launch."""
    began_s: float  # when that launch began, in seconds
    pair: str = ""
    """Shared with the launch of the other side that it was interleaved with; empty where none
    did."""


def load_side(text: str) -> Side:
    """Read a side: a record, several separated by commas, or a folder of them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(
            f"{text!r} has a comma with no file on one side of it: give A1.json,A2.json."
        )
    paths = [path for part in parts for path in _expand(Path(part))]
    return Side(text, tuple(load_record(path) for path in paths))


def list_launched(side: Side) -> dict[Quantity, list[Launched]]:
    """What the launches of a side measured, of cases that ran to their end."""
    found: dict[Quantity, list[Launched]] = {}
    for index, record in enumerate(side.records):
        for case in record.cases:
            if case.status == "complete":
                each = record.launches[case.launch] if record.launches else record
                began_s = datetime.fromisoformat(each.started_utc).timestamp()
                process, pair = (index, case.launch), _pair(record, case)
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


def list_losses(side: Side) -> Iterator[str]:
    """A sentence for each launch and case of a side that cannot be compared."""
    for record in side.records:
        with_cases = {case.launch for case in record.cases}
        for launch in record.launches:
            if launch.status != "complete" and launch.launch not in with_cases:
                status = launch.status.replace("_", " ")
                yield f"{side.name}: launch {launch.launch} {status}: {launch.error or 'Ctrl-C'}"
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
    alternated = case.totals is not None and case.totals.steps_in_turns > 0
    return record.launches[case.launch].pair if record.launches and alternated else ""
