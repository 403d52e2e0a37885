"""NVTX ranges of an export of nsys."""

import numpy as np

from dsv4kv.measure.profilers.ranges import DOMAIN, Ranges
from dsv4kv.measure.profilers.sqlite_columns import Database
from dsv4kv.measure.profilers.trace import NONE, Names

_TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN_MADE = 59, 60, 75


def read_ranges(database: Database, names: Names, step: str) -> Ranges:
    """Ranges of all domains; where the toolkit's own has steps, those of others are none.

    A range's name is a registered string (``textId``) or plain ``text``.
    """
    start, end, kind, domain, thread = database.read(
        _TABLE, ("start", "end", "eventType", "domainId", "globalTid")
    )
    name = database.titles(_TABLE, "text", "textId", names)
    is_range = (kind == _PUSH_POP) | (kind == _START_END)
    made = (kind == _DOMAIN_MADE) & (name == names.known.get(DOMAIN, NONE))
    is_step = is_range & (name == names.known.get(step, NONE))
    own = is_step & np.isin(domain, domain[made])
    if np.any(own):
        is_range &= own | ~is_step
    return Ranges(thread[is_range], start[is_range], end[is_range], name[is_range])
