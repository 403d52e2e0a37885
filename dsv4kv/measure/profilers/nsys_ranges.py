"""NVTX ranges of an export of nsys."""

import numpy as np

from dsv4kv.measure.profilers.ranges import DOMAIN, Ranges, fitting
from dsv4kv.measure.profilers.sqlite_columns import Database
from dsv4kv.measure.profilers.trace import NONE, Column, Names

_TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN_MADE = 59, 60, 75


def read_ranges(database: Database, names: Names, step: str) -> Ranges:
    """Ranges of all domains; where the toolkit's own has steps, those of others are none.

    A range's name is plain ``text``, or a registered string (``textId``). An event that does not
    tell what it is is one if it has an end.
    """
    start, end, kind, domain, thread, text_id, text = database.read_named(
        _TABLE,
        ("start", "end", "eventType", "domainId", "globalTid", "textId"),
        "text",
        names,
    )
    name = np.where(text == NONE, number_texts(database, text_id, names, ""), text)
    untold = (kind == NONE) & (end != NONE)
    is_range = (kind == _PUSH_POP) | (kind == _START_END) | untold
    made = (kind == _DOMAIN_MADE) & (name == names.known.get(DOMAIN, NONE))
    is_step = is_range & np.isin(name, fitting(names.known, step))
    own = is_step & np.isin(domain, domain[made])
    if np.any(own):
        is_range &= own | ~is_step
    return Ranges(thread[is_range], start[is_range], end[is_range], name[is_range])


def number_texts(database: Database, ids: Column, names: Names, instead: str) -> Column:
    """Number the registered strings of a column of ids; ``instead`` of one that is not there.

    A ``{}`` in ``instead`` stands for the id.
    """
    distinct, inverse = np.unique(ids, return_inverse=True)
    texts = database.strings(distinct.tolist())
    numbers = [names.number(texts.get(one, instead.format(one))) for one in distinct.tolist()]
    return np.array(numbers, dtype=np.int64)[inverse]
