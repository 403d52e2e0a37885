"""A record as rows for other programs: CSV, JSON lines, and a Markdown table for people.

CSV and JSON lines have one row per quantity and launch, so that nothing is averaged away that
another program may want to average itself; Markdown has one row per quantity.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dsv4kv.measure.statistics import summarize
from dsv4kv.runs.quantities import (
    Measured,
    Quantity,
    by_quantity,
    list_measured,
    measured_in,
    over_launches,
)
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.view import markup
from dsv4kv.view.cells import measured
from dsv4kv.view.facts import layers_text
from dsv4kv.view.table import Number, Table, names, numbers, tabulate

_AXIS = "axis."


def to_rows(record: RunRecord) -> list[dict[str, Any]]:
    """One row per quantity and launch; times in ns, sizes in bytes, rates in GB/s (10^9 B/s).

    Of a profile, one row per kernel.
    """
    return [
        row
        for case in record.cases
        for row in (*operation_rows(record, case), *kernel_rows(record, case))
    ]


def operation_rows(record: RunRecord, case: Case) -> Iterator[dict[str, Any]]:
    """One row per quantity of a case."""
    return (_row(record, case, each) for each in measured_in(case))


def kernel_rows(record: RunRecord, case: Case) -> Iterator[dict[str, Any]]:
    """One row per kernel of a case that was profiled."""
    table = case.profile.table if case.profile else None
    for kernel in table.kernels if table else []:
        yield of_case(record, case) | {
            "name": kernel.name,
            "category": kernel.category,
            "samples": kernel.calls,
            "total_ns": kernel.total_ns,
            "median_ns": kernel.median_ns,
            "min_ns": kernel.min_ns,
            "p95_ns": kernel.p95_ns,
            "useful_bytes": kernel.useful_bytes,
            "counted_bytes": kernel.counted_bytes,
        }


def of_case(record: RunRecord, case: Case) -> dict[str, Any]:
    """What every row begins with: the run, and which case of it."""
    return {
        "run_id": record.run_id,
        "config": record.config_source,
        "status": case.status,
        "device": case.device,
        "backend": case.backend,
        **{f"{_AXIS}{path}": value for path, value in case.axis.items()},
        "launch": case.launch,
    }


def to_csv(records: Sequence[RunRecord]) -> str:
    """Rows with a header; every swept setting is a column, empty where a run did not sweep it."""
    rows = [row for record in records for row in to_rows(record)]
    return markup.to_csv(tabulate([{k: _cell(v) for k, v in row.items()} for row in rows]))


def to_json_lines(records: Sequence[RunRecord]) -> str:
    """One JSON object a line."""
    rows = (row for record in records for row in to_rows(record))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def to_markdown(records: Sequence[RunRecord]) -> str:
    """A table per record: median of launch medians and its interval."""
    return "\n".join(line for record in records for line in _markdown(record)) + "\n"


def _row(record: RunRecord, case: Case, measured: Measured) -> dict[str, Any]:
    summary = summarize(measured.samples_ns)
    rate = measured.rate_gbps
    return of_case(record, case) | {
        "name": measured.quantity.name,
        "layer_type": measured.quantity.layer_type,
        "temperature": measured.quantity.temperature,
        "samples": summary.n,
        "median_ns": summary.median,
        "median_low_ns": summary.ci_low,
        "median_high_ns": summary.ci_high,
        "iqr_ns": summary.iqr,
        "min_ns": summary.minimum,
        "max_ns": summary.maximum,
        "p90_ns": summary.percentiles.get(90.0),
        "p99_ns": summary.percentiles.get(99.0),
        "bytes_per_call": measured.bytes_per_call or None,
        "gbps": rate.value if rate else None,
        "gbps_half_width": rate.half_width if rate else None,
    }


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def _markdown(record: RunRecord) -> Iterator[str]:
    launches = len(record.launches) or 1
    launched = f"{launches} launches" if launches > 1 else "one launch, interval within it"
    status = "" if record.status == "complete" else f", **{record.status}**"
    layers = layers_text(record.cases)
    facts = ", ".join(filter(None, (record.config_source, launched, layers)))
    yield f"**{record.run_id}** ({facts}{status})"
    groups = by_quantity(list_measured(record)).items()
    rows = [(_name(quantity), f"{len(group)}", *_estimates(group)) for quantity, group in groups]
    yield ""
    yield markup.to_markdown(
        Table("", [*names("quantity"), *numbers("launches", "median, µs", "GB/s")], rows)
    )
    yield ""


def _name(quantity: Quantity) -> str:
    return f"{quantity.axis}: {quantity}" if quantity.axis else str(quantity)


def _estimates(group: Sequence[Measured]) -> tuple[Number, Number]:
    """Median and rate of the launches, or of the only one with its own intervals."""
    if len(group) == 1:
        median = summarize(group[0].samples_ns).estimate
        return measured(median, 1e-3), measured(group[0].rate_gbps)
    rates = [rate.value for each in group if (rate := each.rate_gbps)]
    medians = over_launches([each.median_ns for each in group])
    return measured(medians, 1e-3), measured(over_launches(rates))
