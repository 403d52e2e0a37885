"""Two dumps of what should be one content: where they part first, and how."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps import phases
from dsv4kv.diagnose.dumps.reading import Bytes
from dsv4kv.diagnose.dumps.records import Mask, Parsed, Record, code_sizes, parse
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat

MEANINGS = {
    "one step": "values a quantisation step apart: rounding",
    "scale": "the scale of a group, its values alike",
    "rope": "RoPE channels alone",
    "position": "RoPE turned as at another position, all else equal",
    "missing": "a row of zeros",
    "elsewhere": "a row that the other dump has at another position",
    "other content": "a row of other content",
}
"""Every kind of difference, the harmless one first."""

MOST_STEPS = 2
"""Numbers of bf16 that rounding may set apart."""

_TURNS_LOOKED_FOR = 4


@dataclass(frozen=True)
class Difference:
    """One kind of difference.

    Attributes:
        kind: A key of ``MEANINGS``.
        rows: How many rows differ so.
        entry: The first: logical entry of the request,
        position: and its position in tokens.
        detail: What more is known of the first.
    """

    kind: str
    rows: int
    entry: int
    position: int
    detail: str = ""


@dataclass(frozen=True)
class Comparison:
    """What two dumps share.

    Attributes:
        rows: Logical rows that both have.
        equal: Bit for bit.
        differences: By kind, in the order of the first row.
        alone: Rows that the first and the second hold behind the last of the other.
    """

    rows: int
    equal: int
    differences: list[Difference]
    alone: tuple[int, int] = (0, 0)


def compare_dumps(
    records: tuple[Record, Record],
    pages: tuple[Bytes, Bytes],
    tables: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    ratio: int,
    first: int,
    model: DSV4Config,
) -> Comparison:
    """Rows by logical position; formats are equal, pages may be of other sizes."""
    one, other = (
        parse(record.layout, each[table])
        for record, each, table in zip(records, pages, tables, strict=True)
    )
    entry = records[0].layout.format
    count = min(len(one.live), len(other.live))
    alike = (_whole(one)[:count] == _whole(other)[:count]).all(axis=1)
    used = one.live[:count] | other.live[:count]
    names = _names(entry, one, other, count)
    known = {row.tobytes(): i for i, row in enumerate(_whole(one)[:count]) if one.live[i]}
    kinds: dict[str, list[tuple[int, str]]] = {}
    turns = _Turns(phases.frequencies(model, ratio))
    for i in np.flatnonzero(~alike & used).tolist():
        kind, detail = names[i], ""
        if kind == "rope":
            turn = turns.find(one.tail[i], other.tail[i])
            if turn is not None:
                kind, detail = "position", f"{turn.tokens:+,} tokens"
        elif kind == "other content":
            place = known.get(_whole(other)[i].tobytes())
            if place is not None:
                kind, detail = "elsewhere", f"it is entry {first + place:,} of the first"
        kinds.setdefault(kind, []).append((i, detail))
    differences = [
        Difference(
            kind, len(hits), first + hits[0][0], (first + hits[0][0]) * max(ratio, 1), hits[0][1]
        )
        for kind, hits in kinds.items()
    ]
    order = sorted(differences, key=lambda each: each.entry)
    alone = int(one.live[count:].sum()), int(other.live[count:].sum())
    return Comparison(int(used.sum()), int((alike & used).sum()), order, alone)


class _Turns:
    """What turned rows' RoPE: most often one turn all of them, for a search takes a second."""

    def __init__(self, speeds: NDArray[np.float64]) -> None:
        self._speeds = speeds
        self._known: list[phases.Turn] = []
        self._searches = _TURNS_LOOKED_FOR

    def find(self, one: Bytes, other: Bytes) -> phases.Turn | None:
        """Tails uint8[bytes] of one row in both dumps; None where no turn is known that fits."""
        first, second = (phases.pairs_of(each[None])[0] for each in (one, other))
        for turn in self._known:
            if phases.explains(first, second, self._speeds, turn.tokens) >= phases.SAME:
                return turn
        if self._searches:
            self._searches -= 1
            found = phases.shift_between(first, second, self._speeds)
            self._known += [found] if found else []
            return found
        return None


def _whole(parsed: Parsed) -> Bytes:
    return np.concatenate([parsed.codes, parsed.scales, parsed.tail], axis=1)


def _names(entry: EntryFormat, one: Parsed, other: Parsed, count: int) -> list[str]:
    """What sets each row apart, as if it did."""
    codes = (one.codes[:count] == other.codes[:count]).all(axis=1)
    scales = (one.scales[:count] == other.scales[:count]).all(axis=1)
    tails = (one.tail[:count] == other.tail[:count]).all(axis=1)
    near = _near(entry, one.codes[:count], other.codes[:count])
    missing = ~other.live[:count] | ~one.live[:count]
    conditions = [missing, codes & scales & ~tails, codes & ~scales, near & scales]
    said = ["missing", "rope", "scale", "one step"]
    return [str(kind) for kind in np.select(conditions, said, "other content")]


def _near(entry: EntryFormat, one: Bytes, other: Bytes) -> Mask:
    """Rows whose codes are a step apart at most."""
    if entry.value == "bf16":
        a, b = (np.ascontiguousarray(x).view(np.int16).astype(np.int32) for x in (one, other))
        apart = np.abs(_ordered(a) - _ordered(b))
        return np.asarray((apart <= MOST_STEPS).all(axis=1))
    sizes = [code_sizes(entry, each).astype(np.int32) for each in (one, other)]
    signs = [_signs(entry, each) for each in (one, other)]
    values = [np.where(sign, -size, size) for size, sign in zip(sizes, signs, strict=True)]
    return np.asarray((np.abs(values[0] - values[1]) <= 1).all(axis=1))


def _ordered(words: NDArray[np.int32]) -> NDArray[np.int32]:
    size = words & 0x7FFF
    return np.where(words < 0, -size, size)


def _signs(entry: EntryFormat, codes: Bytes) -> Mask:
    if entry.value == "e4m3":
        return np.asarray(codes >= 128)
    signs = np.stack([codes & 8, codes >> 4 & 8], axis=-1)
    return np.asarray(signs.reshape(len(codes), -1) > 0)
