"""What is wrong with pages of a known record: which rows, and how it shows."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.reading import Bytes
from dsv4kv.diagnose.dumps.records import (
    SURE,
    Mask,
    Record,
    fitting,
    have_nan,
    odd_peaks,
    odd_scales,
    odd_tails,
    parse,
)
from dsv4kv.model.config import DSV4Config, inverse_frequencies

Pairs = NDArray[np.complex128]

FARTHEST = 2**20
"""Positions that a shift is looked for in, to either side."""

SAME = 0.9
"""Of a turn that explains all of a difference 1; rounding to bf16 leaves 0.999."""

_AGREED = 0.25
"""Rows of random content agree to 1 / √rows; from here on it is a request's own direction."""

_FAST = 0.02
"""Radians per position of the pairs that are looked at: slower ones turn alike everywhere."""

_FAR = 8  # standard deviations
_AT_ONCE = 2**13


@dataclass(frozen=True)
class Turn:
    """How far one row is from another."""

    tokens: int  # positions, negative for an earlier one
    share: float  # of the difference that it explains, 1 for all


def pairs_of(tail: Bytes) -> Pairs:
    """Pairs of bf16 channels as complex numbers: [n, pairs]."""
    words = np.ascontiguousarray(tail).view(np.uint16).astype(np.uint32) << 16
    values = words.view(np.float32).astype(np.float64)
    return values[:, 0::2] + 1j * values[:, 1::2]


def frequencies(config: DSV4Config, ratio: int) -> NDArray[np.float64]:
    """Radians per position of each pair."""
    return np.array(inverse_frequencies(config, ratio, "float64"))


def explains(first: Pairs, second: Pairs, speeds: NDArray[np.float64], tokens: int) -> float:
    """Share of the difference of two rows' pairs [pairs] that a turn by ``tokens`` explains."""
    product = np.conj(first) * second
    turned = (np.exp(-1j * tokens * speeds) @ product).real
    return float(turned / max(np.abs(product).sum(), 1e-30))


def shift_between(first: Pairs, second: Pairs, speeds: NDArray[np.float64]) -> Turn | None:
    """The shift that makes one row's pairs [pairs] the other's; None where no shift does."""
    product = np.conj(first) * second
    weight = float(np.abs(product).sum())
    if not weight:
        return None
    best, turns = Turn(0, 0.0), np.exp(-1j * np.arange(_AT_ONCE)[:, None] * speeds)
    for start in range(-FARTHEST, FARTHEST, _AT_ONCE):
        found = (turns @ (product * np.exp(-1j * start * speeds))).real / weight
        place = int(found.argmax())
        if found[place] > best.share:
            best = Turn(start + place, float(found[place]))
    same_size = float(np.abs(np.abs(first) - np.abs(second)).sum() / np.abs(first).sum()) < 0.05
    return best if best.share >= SAME and same_size else None


def odd_phases(
    pairs: Pairs, positions: NDArray[np.int64], speeds: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Rows turned as at another position: bool[n].

    None where rows share no direction, and nothing follows.
    """
    fast = speeds >= _FAST
    still = pairs[:, fast] * np.exp(-1j * positions[:, None] * speeds[fast])
    unit = still / np.maximum(np.abs(still).sum(axis=1, keepdims=True), 1e-30)
    common = np.median(unit.real, axis=0) + 1j * np.median(unit.imag, axis=0)
    size = np.linalg.norm(unit, axis=1)
    along = (unit @ np.conj(common)).real / np.maximum(size * np.linalg.norm(common), 1e-30)
    usual = float(np.median(along))
    spread = 1.4826 * float(np.median(np.abs(along - usual)))
    if usual < max(_AGREED, 4 / np.sqrt(len(pairs)), 4 * spread):
        return None
    return np.asarray(along < max(usual / 2, usual - _FAR * spread))


MEANINGS = {
    "nan": "values that are not a number",
    "odd scale": "a scale or its padding that no writer gives",
    "scale of other values": "a group whose largest code its scale does not explain",
    "odd rope": "RoPE channels of no everyday size",
    "other arrangement": "scales split from the rows where they belong into them, or so",
    "shifted page": "a page whose bytes begin elsewhere",
    "other bytes": "a page of something else",
    "repeated page": "a page that is another one's copy",
    "repeated row": "a row that is another one's copy",
    "zero row": "a row of zeros before one that is written",
    "zero tail": "rows of zeros at the end of what was written",
    "phase of another position": "RoPE turned as at another position: stale, or another row's",
    "page padding": "bytes after the last row that are not zero",
}
"""Every kind of fault."""

_SHOWN_SHIFTS = 64  # bytes by which a page may be shifted, to either side


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    kind: str  # a key of ``MEANINGS``
    rows: int  # how many rows, or pages, have it
    page: int  # the first: which page of the dump,
    entry: int | None = None  # which row of it; None for all
    position: int | None = None  # where in its request, in tokens; None where that is not known
    detail: str = ""  # what more is known of the first


@dataclass(frozen=True)
class Request:
    """Whose pages they are."""

    table: NDArray[np.int64]  # pages in logical order
    ratio: int  # tokens of an entry; 0 for a window of single tokens
    first: int  # entry that the first row is
    model: DSV4Config  # whose RoPE it is
    entries: int | None = None  # that there should be; None where nobody said


def find_faults(record: Record, pages: Bytes, request: Request | None = None) -> list[Fault]:
    """Every kind of fault of pages uint8[N, page bytes], the first of each named.

    With ``request`` rows are judged in its order, by position; else as they are stored.
    """
    order = request.table if request else np.arange(len(pages))
    kinds = _odd_pages(record, pages, order)
    found = [Fault(kind, len(hits), hits[0][0], detail=hits[0][1]) for kind, hits in kinds.items()]
    kept = ~np.isin(order, [page for hits in kinds.values() for page, _ in hits])
    if not kept.any():
        return found
    entries, chosen, positions = record.layout.entries, pages[order[kept]], None
    if request:
        numbers = np.arange(len(order) * entries) + request.first
        whole = (numbers * max(request.ratio, 1)).reshape(len(order), -1)
        positions = whole[kept].reshape(-1)
    for kind, mask in _odd_rows(record, chosen, request, positions).items():
        if mask.any():
            first = int(np.argmax(mask))
            page, entry = int(order[kept][first // entries]), first % entries
            at = None if positions is None else int(positions[first])
            found.append(Fault(kind, int(mask.sum()), page, entry, at))
    return found


def _odd_pages(
    record: Record, pages: Bytes, order: NDArray[np.int64]
) -> dict[str, list[tuple[int, str]]]:
    """Pages that as a whole hold something else: by kind, each with a detail."""
    layout, kinds = record.layout, dict[str, list[tuple[int, str]]]()
    entry = layout.format
    moved = replace(entry, scales_at="page_end" if entry.inline_scales else "row_end")
    other = replace(layout, format=moved)
    for page in dict.fromkeys(order.tolist()):
        one = pages[page : page + 1]
        if not one.any() or _share(record, one) >= SURE:
            continue
        kind, detail = "other bytes", ""
        whole = one[:, : other.page_bytes]
        fits = entry.scale != "none" and whole.shape[1] == other.page_bytes
        if fits and _share(replace(record, layout=other), whole) >= SURE:
            kind = "other arrangement"
        if kind == "other bytes":
            shift = _shift(record, one)
            if shift is not None:
                kind, detail = "shifted page", f"by {shift:+} B"
        if kind == "other bytes":
            parsed = parse(layout, one)
            broken = [have_nan, odd_scales, odd_peaks, odd_tails]
            counts = np.sum([each(entry, parsed) for each in broken], axis=0)
            if (counts[parsed.live] <= 1).mean() >= SURE:
                continue  # single faults in many rows, not another page: reported row by row
        kinds.setdefault(kind, []).append((page, detail))
    return kinds


def _shift(record: Record, page: Bytes) -> int | None:
    """By how many bytes a page's content is shifted."""
    for size in range(1, _SHOWN_SHIFTS + 1):
        for shift in (size, -size):
            if _share(record, np.roll(page, -shift, axis=1)) >= SURE:
                return shift
    return None


def _share(record: Record, pages: Bytes) -> float:
    parsed = parse(record.layout, pages)
    fits = fitting(record.layout.format, parsed)[parsed.live]
    return float(fits.mean()) if len(fits) else 0.0


def _odd_rows(
    record: Record, chosen: Bytes, request: Request | None, positions: NDArray[np.int64] | None
) -> dict[str, Mask]:
    """Which rows of pages have each kind of fault: bool[rows]."""
    layout, entry = record.layout, record.layout.format
    parsed = parse(layout, chosen)
    live, by_page = parsed.live, parsed.live.reshape(len(chosen), -1)
    first = np.arange(len(live)) % layout.entries == 0
    nan, scales = have_nan(entry, parsed) & live, odd_scales(entry, parsed) & live
    copies = np.repeat(_copies(chosen) & by_page.any(axis=1), layout.entries)
    rows = np.concatenate([parsed.codes, parsed.scales, parsed.tail], axis=1)
    # a later row of the page, or of the request, is written
    after = np.asarray(np.cumsum(by_page[:, ::-1], axis=1)[:, ::-1] > 0).reshape(-1)
    if request:
        after = np.arange(len(live)) < np.flatnonzero(live)[-1:].sum()
    masks = {
        "nan": nan,
        "odd scale": scales,
        "scale of other values": odd_peaks(entry, parsed) & live & ~nan & ~scales,
        "odd rope": odd_tails(entry, parsed) & live & ~nan,
        "repeated page": copies & first,
        "repeated row": _copies(rows) & live & ~copies,
        "zero row": ~live & after,
    }
    if request and request.entries is not None and live.any():
        masks["zero tail"] = ~live & ~after & (np.arange(len(live)) < request.entries)
    if layout.padding_bytes and not entry.inline_scales:
        padded = chosen[:, layout.page_bytes - layout.padding_bytes :].any(axis=1)
        masks["page padding"] = np.repeat(padded, layout.entries) & first
    good = np.flatnonzero(live & ~nan)
    if request and positions is not None and entry.tail_dims and len(good) >= 8:
        speeds = frequencies(request.model, request.ratio)
        odd = odd_phases(pairs_of(parsed.tail[good]), positions[good], speeds)
        if odd is not None:
            masks["phase of another position"] = np.isin(np.arange(len(live)), good[odd])
    return masks


def _copies(rows: Bytes) -> Mask:
    """Rows that an earlier one equals."""
    seen: set[bytes] = set()
    found = np.zeros(len(rows), bool)
    for i, row in enumerate(rows):
        key = row.tobytes()
        found[i] = key in seen
        seen.add(key)
    return found
