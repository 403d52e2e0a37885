"""Run records as pandas frames, one for each question.

Columns are those of the record (``dsv4kv report --schema`` explains them) and of its exports;
parts of it are ``totals.steps``, swept settings ``axis.cache.block_tokens``. Every row begins with
``run_id``, ``config``, ``status``, ``device``, ``backend``, the swept settings and ``launch``.
Times are in ns, sizes in bytes, rates in GB/s (10^9 B/s).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.errors import RecordError
from dsv4kv.runs.part import Part
from dsv4kv.runs.quantities import measured_in, saved_percent
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.store import load_record
from dsv4kv.view.exports import kernel_rows, of_case, operation_rows

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Run records, and what they say as frames."""

    records: tuple[RunRecord, ...]

    @cached_property
    def cases(self) -> "DataFrame":
        """What ran and what came of it: a row per case, with its ``totals`` and its ``cache``."""
        return self._frame(_case_rows)

    @cached_property
    def operations(self) -> "DataFrame":
        """How fast everything is: a row per quantity and launch, the same as ``--export csv``.

        ``median_ns`` and its interval, percentiles, ``bytes_per_call``, ``gbps``; steps and
        bookkeeping are rows without bytes.
        """
        return self._frame(operation_rows)

    @cached_property
    def samples(self) -> "DataFrame":
        """How times are distributed: a row per timed call, ``time_ns`` and ``bytes``.

        ``samples[samples.name == "step"]`` are the steps, in their order.
        """
        return self._frame(_sample_rows)

    @cached_property
    def memory(self) -> "DataFrame":
        """What was held when: a row per moment ``at_ns``, a column for each kind of block."""
        return self._frame(_memory_rows)

    @cached_property
    def telemetry(self) -> "DataFrame":
        """What the machine did: a row per poll.

        ``table`` is ``gpu_samples``, ``gpu_checks`` or ``host_samples``.
        """
        return self._frame(_telemetry_rows)

    @cached_property
    def replays(self) -> "DataFrame":
        """What replays found: a row per point of a sweep.

        ``saved_percent`` of the prompt tokens, ``reuse.lost_tokens.REASON``, ``work`` in bytes.
        """
        return self._frame(_replay_rows)

    @cached_property
    def kernels(self) -> "DataFrame":
        """Which kernels took the time of what was profiled: a row per kernel."""
        return self._frame(kernel_rows)

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


def _case_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    yield {
        **of_case(record, case),
        "started_utc": record.started_utc,
        "error": case.error,
        **_flat("totals", case.totals),
        **_flat("cache", case.cache),
    }


def _sample_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    common = of_case(record, case)
    for each in measured_in(case):
        quantity = {
            "name": each.quantity.name,
            "layer_type": each.quantity.layer_type,
            "temperature": each.quantity.temperature,
        }
        for call, time_ns in enumerate(each.samples_ns):
            size = each.bytes[call] if each.bytes else None
            yield {**common, **quantity, "call": call, "time_ns": time_ns, "bytes": size}


def _memory_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    if case.memory:
        held = {each.name: each.held for each in case.memory.units}
        yield from _moments(record, case, {"at_ns": case.memory.at_ns, **held})
    if case.replay:
        yield from _moments(record, case, case.replay.series.model_dump())


def _telemetry_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    for table in ("gpu_samples", "gpu_checks", "host_samples"):
        samples = getattr(case.telemetry, table, None)
        if samples:
            columns = {name: column for name, column in samples.model_dump().items() if column}
            yield from _moments(record, case, columns, table=table)


def _moments(
    record: RunRecord, case: Case, columns: Mapping[str, list[Any]], **names: str
) -> Iterator[Row]:
    common = of_case(record, case) | names
    for values in zip(*columns.values(), strict=True):
        yield {**common, **dict(zip(columns, values, strict=True))}


def _replay_rows(record: RunRecord, case: Case) -> Iterator[Row]:
    if case.replay:
        found = {"saved_percent": saved_percent(case), **_flat("", case.replay)}
        yield {**of_case(record, case), **found, **_flat("totals", case.totals)}


def _flat(prefix: str, part: Part | None) -> Row:
    """Values of a part and of the parts in it, by dotted name; lists are left out."""
    return dict(_leaves(prefix, part.model_dump())) if part else {}


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict):
            yield from _leaves(path, value)
        elif not isinstance(value, list):
            yield path, value
