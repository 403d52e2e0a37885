"""Reads ``.ncu-rep`` files with ncu itself, as a table in CSV: where ``ncu-report`` is missing.

Such a table begins behind lines of ncu's own: names of columns, their units, a row each kernel.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.child import ask

_HEAD = '"ID",'
_TIMEOUT_S = 120.0
_SHAPES = {"launch__grid_dim": "Grid Size", "launch__block_dim": "Block Size"}
_AXES = "xyz"
_NAME = "Kernel Name"


@dataclass(frozen=True)
class CsvMetric:
    """A number with its unit; the functions are those of the ``ncu_report`` package."""

    text: str
    of: str

    def as_double(self) -> float:
        """The number."""
        return float(self.text.replace(",", ""))

    def as_string(self) -> str:
        """The text."""
        return self.text

    def unit(self) -> str:
        """Its unit."""
        return self.of


@dataclass(frozen=True)
class CsvAction:
    """A kernel: its row, and the row of units."""

    row: dict[str, str]
    units: dict[str, str]

    def name(self) -> str:
        """Of the kernel."""
        return self.row[_NAME]

    def metric_by_name(self, name: str) -> CsvMetric | None:
        """A metric, or None where it was not collected."""
        stem, _, axis = name.rpartition("_")
        if stem in _SHAPES:  # (64, 2, 1)
            sizes = self.row.get(_SHAPES[stem], "").strip("()").split(",")
            return CsvMetric(sizes[_AXES.index(axis)], "") if len(sizes) == len(_AXES) else None
        text = self.row.get(name, "")
        return CsvMetric(text, self.units[name]) if text and text != "n/a" else None


def read_actions(ncu: str, path: Path) -> list[CsvAction]:
    """Every kernel of a report.

    Raises:
        ProfileError: ncu gives no table.
    """
    options = ["--csv", "--page", "raw", "--print-units", "base"]
    lines = ask([ncu, "--import", str(path), *options], _TIMEOUT_S).splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(_HEAD)), None)
    if first is None:
        said = " | ".join(line.strip() for line in lines[-3:]) or "nothing"
        raise ProfileError(f"{path} cannot be read by ncu, which says: {said}.")
    try:
        units, *rows = csv.DictReader(lines[first:])
    except (ValueError, csv.Error) as error:
        raise ProfileError(f"{path}: the table that ncu gives cannot be read ({error}).") from None
    return [CsvAction(row, units) for row in rows if row.get(_NAME)]
