"""Rows of the stream ``requests`` put together to requests, and what they say of hits.

A log has a row where a request begins and one where it ends, two logs of a server have both, and
a proxy has one more. Their id is a client's to choose, and to repeat.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4kv.record.folder import Record

PROXY = "proxy:"
"""How the name of a proxy begins, as a source."""
_LATELY = 64  # requests of one id that a row may still be of
_NEAR_S = 60.0  # clocks of two hosts
_ZONE_S, _FARTHEST_ZONE_S = 900, 14 * 3600  # a log's clock may be of another time zone


def is_exchange(row: Record) -> bool:
    """Whether a row of ``requests`` is a request of its own, as a proxy's is, whatever its id."""
    return str(row.get("source", "")).startswith(PROXY)


def is_answered(row: Record) -> bool:
    """Whether a row of a proxy is of a request that a server took, be its answer whole or cut."""
    return bool(0 < row.get("status", 0) < 400)


def says_hits(row: Record) -> bool:
    """Whether a row of ``requests`` has its hits, no more of them than tokens of the prompt."""
    return bool(0 <= row.get("cached_tokens", -1) <= row.get("input_tokens", -1))


@dataclass(slots=True)
class One:
    """A request: what its rows say, and its sources, each with whether the row ended it."""

    row: Record
    parts: set[tuple[str, bool]]


class Requests:
    """Requests by id: a row is of one that has no such row yet, and agrees; else of a new one.

    Of the ``most`` ids seen last.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._of, self._most = dict[object, list[One]](), most

    def add(self, record: Record, row: Record, otherwise: object) -> One | None:
        """A new request, of an id or of ``otherwise``; None if ``row`` went into one."""
        source = "" if is_exchange(record) else str(record.get("source"))
        part = source, not source or "last_s" in record or "output_tokens" in record
        begun = source, False
        name = record.get("id", otherwise)
        known = self._of[name] = self._of.pop(name, [])[-_LATELY:]
        if len(self._of) > self._most:
            del self._of[next(iter(self._of))]
        fitting = [one for one in known if not one.parts & {part, (source, True)}]
        for one in sorted(fitting, key=lambda one: begun not in one.parts):
            if _agree(one.row, row, timed=begun not in one.parts):
                # a log's line of its end may know when it came, whatever the log's time zone
                is_known = "arrival_s" in row and one.parts == {begun}
                one.parts.add(part)
                mine, other = (row, one.row) if is_known or not source else (one.row, row)
                one.row = other | mine | (_ids_of(other) or _ids_of(mine))
                return None
        known.append(One(row, {part}))
        return known[-1]


def _agree(a: Record, b: Record, *, timed: bool) -> bool:
    lengths = {row["input_tokens"] for row in (a, b) if "input_tokens" in row}
    if len(lengths) > 1 or (_ids_of(a) and _ids_of(b) and a["ids"] != b["ids"]):
        return False
    for name in ("arrival_s", "last_s") if timed else ():
        if name in a and name in b:
            apart = abs(a[name] - b[name])
            beside = min(apart % _ZONE_S, -apart % _ZONE_S)
            return bool(apart <= _FARTHEST_ZONE_S + _NEAR_S and beside <= _NEAR_S)
    return True


def _ids_of(row: Record) -> Record:
    known = "ids" in row and row.get("ids_of") != "text"
    return {name: row[name] for name in ("ids", "grain")} | {"ids_of": None} if known else {}


def outline(row: Record) -> Record:
    """The fields of a row that decide which request it belongs to."""
    names = ("arrival_s", "last_s", "input_tokens", "grain", "ids_of")
    found = {name: row[name] for name in names if row.get(name) is not None}
    compared = row.get("ids") and "grain" in row and row.get("ids_of") != "text"
    return found | ({"ids": hash(tuple(row["ids"]))} if compared else {})


def count_requests(rows: Iterable[Record]) -> int:
    """How many requests there are."""
    requests = Requests()
    found = [requests.add(row, outline(row), f"row {n}") for n, row in enumerate(rows)]
    return sum(one is not None for one in found)
