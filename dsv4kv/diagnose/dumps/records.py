"""Which record pages hold, recognised by their bytes.

A quantised record gives itself away: the largest code of a group is near the format's largest,
because its scale was chosen so; scales are exponents of everyday numbers; codes that are NaN do
not occur; RoPE channels are bf16 of everyday size; padding is zero. Random bytes hardly ever pass
all of that, so a few rows decide. Rows without scales (bf16, plain fp8) have no such mark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.reading import Bytes, Dump
from dsv4kv.model import formats as fm

Mask = NDArray[np.bool_]

SURE = 0.75
"""Share of the nonzero rows that must fit a record for it to be recognised."""

FEWEST_ROWS = 4
_FEWEST_SIGNS = 0.2
_SAMPLED_PAGES = 128
_ENTRIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_VLLM_ALIGN = 576  # what vLLM 0.33 rounds pages of indexer keys up to


@dataclass(frozen=True)
class Record:
    """A record in an arrangement of pages."""

    name: str  # of its format
    of: str  # whose it is
    layout: fm.PageLayout  # where everything is in a page
    usual: bool = True  # engines arrange it so

    @property
    def arrangement(self) -> str:
        """How a page is arranged, in words."""
        entry = self.layout.format
        if entry.scale == "none":
            return "only values"
        return "interleaved" if entry.inline_scales else "block-split"

    @property
    def title(self) -> str:
        """For example ``fp8_ds_mla, 584 B, block-split, 64 a page``."""
        entry = self.layout.format
        many = "" if entry.inline_scales else f", {self.layout.entries} a page"
        return f"{self.name}, {entry.entry_bytes} B, {self.arrangement}{many}"


@dataclass(frozen=True)
class Parsed:
    """Rows of pages, in order."""

    codes: Bytes  # values, uint8[n, value bytes]
    scales: Bytes  # with padding, uint8[n, scale bytes]
    tail: Bytes  # uint8[n, tail bytes]
    live: Mask  # rows that are not all zero, bool[n]

    @property
    def whole(self) -> Bytes:
        """All of every row."""
        return np.concatenate([self.codes, self.scales, self.tail], axis=1)


@dataclass(frozen=True)
class Candidate:
    """How well a record fits."""

    record: Record  # which
    fits: float  # share of the rows that hold something
    rows: int  # how many do


def parse(layout: fm.PageLayout, pages: Bytes) -> Parsed:
    """Cut pages uint8[N, page bytes] into their rows."""
    entry, count = layout.format, layout.entries
    data = pages[:, : count * entry.data_row_bytes].reshape(-1, entry.data_row_bytes)
    if entry.inline_scales:
        first = entry.value_bytes + (entry.tail_bytes if entry.scales_at == "row_end" else 0)
        scales = data[:, first : first + entry.scale_bytes]
    else:
        rest = pages[:, layout.scale_start :][:, : count * entry.scale_bytes]
        scales = rest.reshape(len(data), entry.scale_bytes)
    tail = data[:, entry.tail_start : entry.tail_start + entry.tail_bytes]
    live = np.asarray(data.any(axis=1) | scales.any(axis=1))
    return Parsed(data[:, : entry.value_bytes], scales, tail, live)


_E4M3_NAN = 0x7F
_LEAST_PEAK = {"ue8m0": 0x76, "ue8m0x4": 0x76, "fp32": 0x76, "amax_fp32": 0x7E}
_FOUR_BIT_PEAK = {"ue8m0": 5, "e4m3": 6}  # 3; 4 where a scale is rounded itself
_EXPONENTS = 80, 150  # of scales: 2^-47 … 2^23
_BF16_EXPONENTS = 127 - 40, 127 + 14


def code_sizes(entry: fm.EntryFormat, codes: Bytes) -> Bytes:
    """Codes without signs, one a channel: uint8[n, value dims]."""
    if entry.value == "e4m3":
        return np.asarray(codes & 0x7F, np.uint8)
    nibbles = np.stack([codes & 7, codes >> 4 & 7], axis=-1)
    return nibbles.reshape(len(codes), -1).astype(np.uint8)


def peaks(entry: fm.EntryFormat, codes: Bytes) -> Bytes:
    """The largest code of each group without its sign: uint8[n, groups]."""
    sizes = code_sizes(entry, codes)
    largest: Bytes = sizes.reshape(len(codes), entry.groups, entry.group).max(axis=2)
    if entry.scale_columns > 1:
        columns = entry.scale_columns
        order = np.arange(entry.groups).reshape(columns, -1).T.reshape(-1)
        return largest[:, order]
    return largest


def have_nan(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """Rows with a value that is not a number."""
    found = np.zeros(len(parsed.codes), bool)
    if entry.value == "e4m3":
        found |= ((parsed.codes & 0x7F) == _E4M3_NAN).any(axis=1)
    words = _words(entry, parsed)
    return np.asarray(found | ((words & 0x7F80) == 0x7F80).any(axis=1))


def _words(entry: fm.EntryFormat, parsed: Parsed) -> NDArray[np.uint16]:
    """Channels of bf16, if a row has any: uint16[n, channels]."""
    row_bytes = parsed.codes if entry.value == "bf16" else parsed.tail
    if entry.value != "bf16" and not (entry.tail_dims and entry.tail == "bf16"):
        row_bytes = row_bytes[:, :0]
    return np.ascontiguousarray(row_bytes).view(np.uint16)


def _exponents(entry: fm.EntryFormat, parsed: Parsed) -> tuple[NDArray[np.uint32], Mask]:
    """The exponent of every scale, and whether its other bits are wrong: [n, groups] each.

    Of an e4m3 scale the whole code stands for its exponent.
    """
    used = parsed.scales[:, : entry.scale_bytes - entry.scale_padding]
    if entry.scale == "e4m3":
        return used.astype(np.uint32), np.asarray((used == 0) | (used >= _E4M3_NAN))
    if entry.scale == "ue8m0x4":
        fours = used.reshape(len(used), -1, 4)
        first = fours[:, :, 0]
        return first.astype(np.uint32), np.asarray((fours != first[:, :, None]).any(axis=2))
    if entry.scale == "ue8m0":
        return used.astype(np.uint32), np.zeros(used.shape, bool)
    bits = np.ascontiguousarray(used).view(np.uint32)
    wrong = np.asarray((bits & 0x7FFFFF != 0) & (entry.scale == "fp32"))
    return (bits >> 23).astype(np.uint32), wrong


def odd_scales(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """Rows with a scale that no writer gives: bool[n]."""
    if entry.scale == "none":
        return np.zeros(len(parsed.codes), bool)
    exponents, odd = _exponents(entry, parsed)
    if entry.scale != "e4m3":
        low, high = _EXPONENTS
        odd = odd | (exponents < low) | (exponents > high)  # negative ones are above
    zero = peaks(entry, parsed.codes) == 0  # of such a group any scale is right
    padding = parsed.scales[:, entry.scale_bytes - entry.scale_padding :]
    return np.asarray((odd & ~zero).any(axis=1) | padding.any(axis=1))


def odd_peaks(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """Rows with a group whose largest code is too small for its scale: bool[n].

    Where a scale is as small as its writer gives, values may be smaller.
    """
    if entry.scale == "none":
        return np.zeros(len(parsed.codes), bool)
    largest, (exponents, _) = peaks(entry, parsed.codes), _exponents(entry, parsed)
    least = _LEAST_PEAK[entry.scale] if entry.value == "e4m3" else _FOUR_BIT_PEAK[entry.scale]
    floor = 1 if entry.scale == "e4m3" else 113  # DeepSeek's floor is 105, FlashMLA's 113
    return np.asarray(((largest < least) & (largest > 0) & (exponents > floor)).any(axis=1))


def odd_tails(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """Rows with bf16 channels of no everyday size: bool[n]."""
    words, (low, high) = _words(entry, parsed), _BF16_EXPONENTS
    exponents = words >> 7 & 0xFF
    odd = ((exponents < low) | (exponents > high)) & (words & 0x7FFF != 0)
    return np.asarray(odd.any(axis=1))


def fitting(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """Rows in which nothing speaks against a format: bool[n]."""
    against = have_nan(entry, parsed) | odd_scales(entry, parsed)
    return np.asarray(~(against | odd_peaks(entry, parsed) | odd_tails(entry, parsed)))


@cache
def known_records() -> tuple[tuple[str, str, fm.EntryFormat, bool], ...]:
    """Name, owner, format and whether engines write it so: every format in both arrangements."""
    found: dict[fm.EntryFormat, tuple[str, list[str]]] = {}
    places: tuple[fm.Place, ...] = ("main", "window", "indexer")
    for place in places:
        for name, entry in fm.known_formats(place).items():
            found.setdefault(entry, (name, []))[1].append(place)
    flat = fm.FLAT_FORMATS | fm.SIZED_FLAT_FORMATS
    rows = [(name, " and ".join(of), entry, True) for entry, (name, of) in found.items()]
    rows += [(name, "V3.2 main", entry, True) for name, entry in flat.items()]
    rows += [
        (name, f"{of}, padded by vLLM", replace(entry, page_align=_VLLM_ALIGN), True)
        for name, of, entry, _ in rows
        if of == "indexer"
    ]
    usual = {_shape(entry) for _, _, entry, _ in rows}
    rows += [
        (name, of, other, False)
        for name, of, entry, _ in rows
        if entry.scale != "none"
        if _shape(other := replace(other_arrangement(entry), page_align=1)) not in usual
    ]
    return tuple(rows)


def _shape(entry: fm.EntryFormat) -> fm.EntryFormat:
    return replace(entry, name="", page_align=1)


def other_arrangement(entry: fm.EntryFormat) -> fm.EntryFormat:
    """The same record with its scales behind all rows instead of in them, or so."""
    return replace(entry, scales_at="page_end" if entry.inline_scales else "row_end")


def candidates(dump: Dump, entries: int | None = None, name: str | None = None) -> list[Candidate]:
    """Records that a dump may hold, the best first; those without a mark are not among them."""
    found: dict[tuple[fm.EntryFormat, int], Candidate] = {}
    for record, pages in _tried(dump, entries, name):
        entry = record.layout.format
        if entry.scale == "none" and name is None:
            continue
        parsed = parse(record.layout, pages[:_SAMPLED_PAGES])
        rows = int(parsed.live.sum())
        if rows < min(FEWEST_ROWS, len(parsed.live)):
            continue
        fits = fitting(entry, parsed)[parsed.live]
        share = float(fits.mean()) if rows and _signs_are_mixed(entry, parsed) else 0.0
        key = entry, 0 if entry.inline_scales else record.layout.entries
        found.setdefault(key, Candidate(record, share, rows))
    return sorted(found.values(), key=lambda each: (-each.fits, not each.record.usual))


def _signs_are_mixed(entry: fm.EntryFormat, parsed: Parsed) -> bool:
    """Whether many codes are negative and many positive, of even and odd channels; text is not."""
    codes = parsed.codes[parsed.live]
    if entry.value == "bf16":
        signs = [codes[:, 1::2] >> 7]
    elif entry.value == "e4m3":
        signs = [codes >> 7]
    else:
        signs = [codes >> 3 & 1, codes >> 7]
    return all(_FEWEST_SIGNS <= each.mean() <= 1 - _FEWEST_SIGNS for each in signs)


def _tried(dump: Dump, entries: int | None, name: str | None) -> Iterator[tuple[Record, Bytes]]:
    sizes = {int(np.prod(dump.shape[k:])) for k in range(1, len(dump.shape))}
    for format_name, of, entry, usual in known_records():
        if name is not None and name != format_name:
            continue
        for count in (entries,) if entries else _ENTRIES:
            layout = fm.PageLayout(entry, count)
            size = layout.page_bytes
            if size == entry.entry_bytes and not entry.inline_scales and entry.scale != "none":
                continue  # a page of one row, which is an interleaved one
            if len(dump.data) % size or (sizes and not any(s % size == 0 for s in sizes)):
                continue
            yield Record(format_name, of, layout, usual), dump.data.reshape(-1, size)


def recognise(found: Sequence[Candidate]) -> Candidate | None:
    """The record that a dump holds; None where none fits, or two fit alike."""
    if not found or found[0].fits < SURE:
        return None
    rivals = [each for each in found[1:] if each.fits >= found[0].fits - 0.05]
    if any(each.record.usual >= found[0].record.usual for each in rivals):
        return None
    return found[0]


def unmarked(dump: Dump) -> list[str]:
    """Rows without scales that the dump's last size would be: no byte shows whose they are."""
    return [
        f"{name} of {entry.dims} channels ({of})"
        for name, of, entry, _ in known_records()
        if entry.scale == "none" and dump.shape[-1] == entry.data_row_bytes
    ]
