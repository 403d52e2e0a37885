"""Checked access to the fields of one record of a trace."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from dsv4kv.workload.traces.lines import Defect

# Keeps lengths in 32 bits; a larger number is a mistaken unit, not a prompt.
MAX_TOKENS = 2**31 - 1
# The largest of signed 64 bits: a run that ends with it would have no end. No id is that.
ODD_ID = 2**63 - 1


def read_tokens(record: Mapping[str, Any], name: str, low: int) -> int:
    """Return a token count of at least ``low``; a bool or a float is a ``Defect``."""
    return checked_tokens(required(record, name), name, low)


def checked_tokens(value: Any, name: str, low: int) -> int:
    """Return ``value`` if it is a whole number from ``low`` to ``MAX_TOKENS``."""
    if type(value) is not int or not low <= value <= MAX_TOKENS:
        raise Defect(
            f"{name} is {reprlib.repr(value)}, "
            f"expected a whole number of tokens from {low} to {MAX_TOKENS:,}"
        )
    return value


def read_time(record: Mapping[str, Any], name: str, unit: str) -> float:
    """Return a finite time, in the file's own unit."""
    value = required(record, name)
    if type(value) not in {int, float} or not _is_finite(value):
        raise Defect(f"{name} is {reprlib.repr(value)}, expected a finite number of {unit}")
    return float(value)


def read_block_ids(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of ids as a tuple."""
    return checked_ids(read_numbers(record, name), name)


def read_numbers(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of whole numbers as a tuple."""
    value = required(record, name)
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise Defect(f"{name} is {reprlib.repr(value)}, expected a list of whole numbers")
    return tuple(value)


def checked_ids(ids: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Refuse numbers that are no ids, or that would be taken for others."""
    if not ids:
        return ids
    low, high = min(ids), max(ids)
    if low >= 0 and high < ODD_ID:
        return ids
    wrong = next((i for i in (low, high) if not -(2**63) <= i < 2**64), None)
    if wrong is None and ODD_ID in ids:
        wrong = ODD_ID
    if wrong is None and low < 0 and high > ODD_ID:
        wrong = low  # beside an unsigned number
    if wrong is not None:
        raise Defect(
            f"{name} has {reprlib.repr(wrong)}, expected numbers of 64 bits, all unsigned or all "
            "signed, other than 2^63 - 1"
        )
    return ids


def required(record: Mapping[str, Any], name: str) -> Any:
    """Return a field that every record of the format has."""
    if name not in record:
        raise Defect(f"{name} is missing")
    return record[name]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of a float
        return False
