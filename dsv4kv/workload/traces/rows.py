"""Rows of a CSV trace, by the names in its header."""

import csv
import re
from collections.abc import Iterator

from dsv4kv.workload.traces.fields import checked_tokens
from dsv4kv.workload.traces.lines import Defect, TraceLines

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def parse_row(line: str) -> list[str]:
    """Split one line into its fields, without the spaces around them."""
    try:
        return [field.strip() for field in next(csv.reader([line], strict=True), [])]
    except csv.Error as error:
        raise Defect(f"broken CSV ({error})") from None


def csv_rows(lines: TraceLines, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield every row after the header; the header must name all ``columns``."""
    lines.peek()
    header = parse_row(next(lines))
    missing = [name for name in columns if name not in header]
    if missing:
        raise Defect(f"the header has no column {' or '.join(missing)}")
    try:
        for row in csv.reader(lines, strict=True):
            if row and not (len(row) == 1 and not row[0].strip()):  # blank lines
                yield _name_fields(header, row)
    except csv.Error as error:
        raise Defect(f"broken CSV ({error})") from None


def row_tokens(row: dict[str, str], name: str, low: int) -> int:
    """Return the whole number of a field, at least ``low``."""
    text = row[name].strip()
    value = int(text) if _WHOLE_NUMBER.fullmatch(text) else text
    return checked_tokens(value, name, low)


def _name_fields(header: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise Defect(f"the row has {len(row)} fields, the header {len(header)}")
    return dict(zip(header, row, strict=True))
