"""A running server's cache at a glance: tables for a terminal, a line for a log."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from dsv4kv.record.server import Glance
from dsv4kv.units import counted
from dsv4kv.view.quantity import quantity, share
from dsv4kv.view.table import ABSENT, Columns, Number, Part, Table, Text

_MINUTE_S = 60.0
K = TypeVar("K")
_MOST_ROWS = 20  # of a table
_SILENT_S = 60.0  # the slowest page of metrics is sampled more often


def dashboard(glance: Glance) -> Iterator[Part]:
    """Everything, for a terminal."""
    yield Text(watch_line(glance), "strong")
    asked, absent = next(iter(glance.found.values()), (0, 0))[1], Number(ABSENT)
    rows = [
        (f"by {name}", quantity(hit), quantity(of), share(hit, of))
        for name, (hit, of) in glance.found.items()
    ]
    rows += [
        (f"… on {where}", quantity(hit), Number(""), share(hit, asked))
        for where, hit in _largest(glance.sources)
    ]
    rows = rows or [("not reported by the server", absent, absent, ABSENT)]
    yield from ("", Table("Hits", ["prompt tokens", "hit", "requested", "hit rate"], rows))
    minutes = glance.window_s / _MINUTE_S
    moved = [
        ("blocks stored", glance.stored),
        ("blocks evicted", glance.removed),
        ("requests", glance.requests),
        ("requests preempted", glance.preempted),
    ]
    churn = [
        (what, quantity(total), absent if total is None else Number(f"{total / minutes:,.1f}"))
        for what, total in moved
    ]
    now = ("running", glance.running), ("waiting", glance.waiting)
    churn += [(f"requests {what} now", quantity(count), Number("")) for what, count in now]
    yield from ("", Table("Churn", ["what", "total", "per minute"], churn))
    if glance.groups:
        cached = sum(glance.groups.values())
        columns: Columns = [
            ("group", lambda item: f"{item[0]}"),
            ("blocks", lambda item: quantity(item[1])),
            ("share", lambda item: share(item[1], cached)),
        ]
        note = "stored less evicted, since the recording began, without blocks cached before"
        groups = _largest(glance.groups)
        yield from ("", Table("Cached blocks (inferred)", columns, groups, note=note))


def _largest(counts: Mapping[K, int]) -> list[tuple[K, int]]:
    """The largest in their order: of what a server names there may be thousands."""
    largest = dict(sorted(counts.items(), key=lambda item: -item[1])[:_MOST_ROWS])
    return [item for item in counts.items() if item[0] in largest]


def watch_line(glance: Glance) -> str:
    """The hit rate and what happened, in a line."""
    hit, asked = next(iter(glance.found.values()), (0, 0))
    parts = [
        f"last {glance.window_s / _MINUTE_S:,.1f} min",
        f"hit rate {share(hit, asked)}",
        counted(glance.requests, "request"),
    ]
    if glance.used is not None:
        parts.append(f"{glance.used:.0%} of the pool in use")
    if glance.removed is not None:
        parts.append(f"{counted(glance.removed, 'block')} evicted")
    if glance.preempted:
        parts.append(f"{glance.preempted:,} preempted")
    if glance.damaged:
        parts.append(f"{counted(glance.damaged, 'damaged row')} skipped")
    if glance.silent_s > _SILENT_S:
        parts.insert(0, f"nothing was recorded for {glance.silent_s:,.0f} s")
    return ", ".join(parts)
