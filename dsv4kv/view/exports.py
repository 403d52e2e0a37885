"""Records as rows for other programs: CSV and pandas frames.

CSV and ``operations`` have one row per quantity and launch, which begins with ``run_id``,
``config``, ``status``, ``device``, ``backend``, swept settings as ``axis.KEY``, and ``launch``.
Times are in ns, sizes in bytes, rates in GB/s (10^9 B/s). ``docs/record-schema.json`` explains all
names.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.errors import RecordError
from dsv4kv.runs import quantities as q
from dsv4kv.runs.part import Part
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.statistics import summarize
from dsv4kv.runs.store import load_record

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
_KERNEL = ("calls", "total_ns", "median_ns", "min_ns", "useful_bytes", "counted_bytes")


def to_rows(record: RunRecord) -> list[Row]:
    """One row per quantity and launch; of a profile, one per kernel."""
    return [
        row
        for case in record.cases
        for row in (*_operation_rows(record, case), *_kernel_rows(record, case))
    ]


def _operation_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    for each in q.measured_in(case):
        summary, rate = summarize(each.samples_ns), each.rate_gbps
        yield _of_case(record, case) | {
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


def _kernel_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    table = case.profile.table if case.profile else None
    for kernel in table.kernels if table else []:
        facts = {name.replace("calls", "samples"): getattr(kernel, name) for name in _KERNEL}
        named = {"name": kernel.name, "category": kernel.category}
        yield _of_case(record, case) | named | facts


def _of_case(record: RunRecord, case: Case) -> Row:
    return {
        "run_id": record.run_id,
        "config": record.config_source,
        "status": case.status,
        "device": case.device,
        "backend": case.backend,
        **{f"axis.{path}": value for path, value in case.axis.items()},
        "launch": case.launch,
    }


def to_csv(records: Sequence[RunRecord]) -> str:
    """Rows with a header; every swept setting is a column, empty where a run did not sweep it."""

    def cell(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, list | dict | bool) else value

    rows = [row for record in records for row in to_rows(record)]
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


@dataclass(frozen=True)
class Records:
    """Run records, and their values as frames."""

    records: tuple[RunRecord, ...]

    @cached_property
    def cases(self) -> "DataFrame":
        """What ran and how it ended: a row per case, with its ``totals.`` and ``cache.``."""
        return self._frame(
            lambda record, case: [
                {
                    **_of_case(record, case),
                    "started_utc": record.started_utc,
                    "error": case.error,
                    **_flat("totals", case.totals),
                    **_flat("cache", case.cache),
                }
            ]
        )

    @cached_property
    def operations(self) -> "DataFrame":
        """How fast everything is: a row per quantity and launch, the same as ``report --csv``."""
        return self._frame(_operation_rows)

    @cached_property
    def samples(self) -> "DataFrame":
        """How times are distributed: a row per timed call, ``time_ns`` and ``bytes``.

        ``samples[samples.name == "step"]`` are the steps, in their order.
        """
        return self._frame(_sample_rows)

    @cached_property
    def memory(self) -> "DataFrame":
        """Blocks in use over time: a row per moment ``at_ns``, a column for each kind."""
        return self._frame(_memory_rows)

    @cached_property
    def replays(self) -> "DataFrame":
        """A row per point of a sweep of replays: ``saved_percent``, ``reuse.lost_tokens.…``."""
        return self._frame(_replay_rows)

    def _frame(self, rows: Callable[[RunRecord, Case], Iterable[Row]]) -> "DataFrame":
        from pandas import DataFrame

        return DataFrame(
            [row for record in self.records for case in record.cases for row in rows(record, case)]
        )


def load_records(*sources: str | Path) -> Records:
    """Read run records, given as files, folders of them or patterns.

    Raises:
        RecordError: A source without records, or a file that is none.
        ImportError: pandas is not installed.
    """
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ImportError(
            "load_records gives pandas frames, and pandas is not installed: "
            "pip install 'dsv4kv[pandas]'"
        ) from None
    paths = dict.fromkeys(path for source in sources for path in _files(source))
    return Records(tuple(load_record(path) for path in paths))


def _files(source: str | Path) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    pattern = path / "[!.]*.json" if path.is_dir() else path
    found = sorted(map(Path, glob(str(pattern), recursive=True)))  # noqa: PTH207 absolute ones too
    if not found:
        raise RecordError(
            f"{source} names no record: give a file that `dsv4kv bench` saved, a folder of them, "
            "or a pattern such as results/*.json."
        )
    return found


def _sample_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    for each in q.measured_in(case):
        common = _of_case(record, case) | {
            name: getattr(each.quantity, name) for name in ("name", "layer_type", "temperature")
        }
        for call, time_ns in enumerate(each.samples_ns):
            size = each.bytes[call] if each.bytes else None
            yield {**common, "call": call, "time_ns": time_ns, "bytes": size}


def _memory_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    if case.memory:
        held = {each.name: each.held for each in case.memory.units}
        yield from _moments(record, case, {"at_ns": case.memory.at_ns, **held})
    if case.replay:
        yield from _moments(record, case, case.replay.series.model_dump())


def _moments(record: RunRecord, case: Case, columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    for values in zip(*columns.values(), strict=True):
        yield {**_of_case(record, case), **dict(zip(columns, values, strict=True))}


def _replay_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    if case.replay:
        found = {"saved_percent": q.saved_percent(case), **_flat("", case.replay)}
        yield {**_of_case(record, case), **found, **_flat("totals", case.totals)}


def _flat(prefix: str, part: Part | None) -> Row:
    return dict(_leaves(prefix, part.model_dump())) if part else {}


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict):
            yield from _leaves(path, value)
        elif not isinstance(value, list):
            yield path, value
