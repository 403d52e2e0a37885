"""Whether two sides may be compared: machine, software and configuration, field by field."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dsv4kv.compare.side import Side
from dsv4kv.runs.quantities import axis_text
from dsv4kv.runs.schema import Case, RunRecord

# What dsv4kv is compared for, and what no run shares with the next.
_MEANT = ("versions.dsv4kv", "git_sha", "git_dirty", "load_1min")
_VARIABLES = "variables."  # not there means not set, and that is a difference

Kind = Literal["machine", "config", "unknown"]


@dataclass(frozen=True)
class Difference:
    """A field in which the sides differ.

    Attributes:
        kind: ``machine`` (hardware and software), ``config``, or ``unknown`` for a field that only
            one of two versions of dsv4kv has; the last does not prevent a comparison.
        field: Dotted path.
        before: Values of the one side, as text.
        after: Values of the other.
    """

    kind: Kind
    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.field}: {self.before} against {self.after}"


def list_differences(before: Side, after: Side) -> list[Difference]:
    """Everything that two sides must share and do not; a side must also agree with itself."""
    machines = _compare("machine", *(_gather(_machine, side) for side in (before, after)))
    configs = _compare("config", *(_gather(_settings, side) for side in (before, after)))
    return [*machines, *configs]


def _compare(
    kind: Kind, before: dict[str, list[str]], after: dict[str, list[str]]
) -> Iterator[Difference]:
    for field in [*before, *(field for field in after if field not in before)]:
        first, second = before.get(field, []), after.get(field, [])
        known = bool(first and second) or field.startswith(_VARIABLES)
        if len(first) > 1 or first != second:
            shown = [" or ".join(values) or "not there" for values in (first, second)]
            yield Difference(kind if known else "unknown", field, *shown)


def _gather(read: Any, side: Side) -> dict[str, list[str]]:
    """Every value that the records of a side have in a field, each once."""
    found: dict[str, list[str]] = {}
    for record in side.records:
        for field, value in read(record):
            values = found.setdefault(field, [])
            if (text := _text(value)) not in values:
                values.append(text)
    return found


def _machine(record: RunRecord) -> Iterator[tuple[str, Any]]:
    values = record.environment.model_dump(mode="json")
    values["gpu"] = values["gpu"] or {"name": "none"}
    for field, value in _flatten(values):
        if field not in _MEANT:
            yield field, value


def _settings(record: RunRecord) -> Iterator[tuple[str, Any]]:
    """Settings of every case, under the point of the sweep they belong to."""
    yield "trace_sha256", record.trace_sha256
    for case in record.cases:
        prefix = f"[{axis_text(case)}] " if case.axis else ""
        for field, value in _of_case(case):
            yield prefix + field, value


def _of_case(case: Case) -> Iterator[tuple[str, Any]]:
    yield "ran on", case.device
    yield "backend_version", case.backend_version
    yield from ((field, value) for field, value in _flatten(case.config) if field != "name")


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)
