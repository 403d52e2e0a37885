"""Records as rows for other programs: CSV with one row per quantity and launch.

Every row begins with ``run_id``, ``config``, ``status``, ``device``, ``backend``, swept settings
as ``axis.KEY``, and ``launch``. Times are in ns, sizes in bytes, rates in GB/s (10^9 B/s).
``docs/record-schema.json`` explains all names.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from dsv4kv.runs import quantities as q
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.statistics import summarize

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
