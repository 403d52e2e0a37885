"""BurstGPT traces (HPMLL/BurstGPT): CSV without blocks, times in seconds."""

import math
from collections.abc import Iterator

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.lines import Defect, TraceLines
from dsv4kv.workload.traces.rows import csv_rows, row_tokens

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def read_burstgpt(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; arrivals count from the first row."""
    first_s: float | None = None
    for row in csv_rows(lines, _COLUMNS):
        time_s = _parse_time_s(row["Timestamp"])
        first_s = time_s if first_s is None else first_s
        if row["Request tokens"].strip() == "0":
            raise Defect(
                "Request tokens is 0: a failed request, which never held cache; "
                "take the BurstGPT_without_fails files of the same release"
            )
        yield Request(
            arrival_s=time_s - first_s,
            input_tokens=row_tokens(row, "Request tokens", low=1),
            output_tokens=row_tokens(row, "Response tokens", low=0),
        )


def _parse_time_s(text: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise Defect(f"Timestamp is {text[:40]!r}, expected a number of seconds")
    return time_s
