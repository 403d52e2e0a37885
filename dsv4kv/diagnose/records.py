"""Tensors saved from an engine, and which record their pages hold, recognised by their bytes.

A file is trusted with nothing: a header is read before anything is allocated, and sizes are held
against the file's own.

A quantised record gives itself away: the largest code of a group is near the format's largest,
because its scale was chosen so; scales are exponents of everyday numbers; codes that are NaN do
not occur; RoPE channels are bf16 of everyday size; padding is zero. Random bytes hardly ever pass
all of that, so a few rows decide. Rows without scales (bf16, plain fp8) have no such mark.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from itertools import product
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.files import open_regular, parse_json
from dsv4kv.model import formats as fm
from dsv4kv.units import cut

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Tensor = tuple[Bytes, tuple[int, ...]]  # its bytes and its sizes

MOST_BYTES = 2**36  # the largest tensor that is looked at: it is mapped, and read page by page
_MOST_HEADER = 2**24
_MOST_NPY_HEADER = 2**16
_MOST_DIMS = 32
_LONGEST_NAME = 200
_LONGEST_QUOTE = 300  # of a file's own words in a sentence
_PICKLES = {".pt", ".pth", ".pkl", ".pickle"}  # a tier's file may have one, too
_SAFETENSORS_BYTES = {
    "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Dump:
    """One tensor of a file."""

    path: Path
    name: str  # of the tensor; empty where a file is one tensor
    data: Bytes  # all of its bytes, uint8[n]
    shape: tuple[int, ...]
    """Its sizes with elements as bytes: the last one is a row's. Of a file without a shape one
    size."""

    @property
    def title(self) -> str:
        """File and tensor."""
        return f"{self.path.name}:{self.name}" if self.name else self.path.name


def read_dump(path: Path, tensor: str | None = None) -> Dump:
    """Read ``.npy``, ``.safetensors``, or a tier's bytes as they are.

    Raises ``TraceError`` for a file that cannot be read, or has another format than it says.
    """
    try:
        with open_regular(path) as file:
            head, size = file.read(16), path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}.") from error
    if not size:
        raise TraceError(f"{path} is empty: there is no page in it.")
    found: dict[str, Tensor]
    if head.startswith(b"\x93NUMPY"):
        values, shape = _read_npy(path, size)
        found = {"": (values.view(np.uint8), _as_bytes(shape, values.itemsize))}
    elif path.suffix == ".safetensors":
        found = dict(_read_safetensors(path, size))
    elif head[:4] == b"PK\x03\x04" or (head[:1] == b"\x80" and path.suffix in _PICKLES):
        raise TraceError(
            f"{path} is a zip file or a pickle, as torch.save writes it, and a pickle runs code "
            "when it is read: save tensors as .safetensors, or one with "
            "numpy.save(FILE, tensor.view(torch.uint8).cpu().numpy())."
        )
    else:
        _check_size(path, (size,), 1, size)
        found = {"": (np.memmap(path, np.uint8, "r"), (size,))}
    listed = cut(", ".join([*found][:20]) or "none", _LONGEST_QUOTE)
    if tensor is not None and tensor not in found:
        asked = cut(tensor, _LONGEST_QUOTE)
        raise TraceError(f"{path} has no tensor {asked!r}: it has {listed}.")
    if not found:
        raise TraceError(f"{path} holds no tensor.")
    if tensor is None and len(found) != 1:
        raise TraceError(f"{path} has {len(found)} tensors: name one with --tensor: {listed}.")
    name = next(iter(found)) if tensor is None else tensor
    return Dump(path, name, *found[name])


def _read_npy(path: Path, size: int) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Map an array, flat, with its shape; the header is checked against the file first."""
    with path.open("rb") as file:
        head = BytesIO(file.read(_MOST_NPY_HEADER))  # its own length may be any
    try:
        version = np.lib.format.read_magic(head)
        read = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}[version]
        given = getattr(np.lib.format, read)(head, max_header_size=_MOST_NPY_HEADER)
        shape, columns_first, dtype = given
        _whole_numbers([abs(n) for n in shape], _MOST_DIMS)
    except (
        ValueError, TypeError, LookupError, SyntaxError, TokenError, RecursionError, MemoryError
    ) as error:  # fmt: skip
        said = cut(str(error), _LONGEST_QUOTE)
        raise TraceError(f"{path} has no header of numpy.save: {said}.") from error
    start = head.tell()
    if dtype.hasobject:
        raise TraceError(f"{path} holds Python objects, which are pickled: save numbers.")
    if columns_first and len(shape) > 1:
        raise TraceError(f"{path} is stored column by column: save numpy.ascontiguousarray of it.")
    _check_size(path, shape, dtype.itemsize, size - start)
    return np.memmap(path, dtype, "r", start, (math.prod(shape),)), shape


def _check_size(path: Path, shape: tuple[int, ...], itemsize: int, there: int) -> None:
    said = math.prod(shape) * itemsize
    if min(shape, default=1) < 0:
        raise TraceError(f"{path} says that a tensor's shape is {shape}.")
    if said != there:
        raise TraceError(f"{path} says that it holds {said:,} B, and holds {there:,} B.")
    if not 0 < said <= MOST_BYTES:
        raise TraceError(f"{path} holds {said:,} B: give 1 to {MOST_BYTES:,} B of pages.")


def _as_bytes(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * itemsize) if shape else (itemsize,)


def _read_safetensors(path: Path, size: int) -> Iterator[tuple[str, Tensor]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MOST_HEADER, size - 8):
            raise TraceError(f"{path} is no safetensors file: a header of {length:,} B.")
        try:
            header = parse_json(file.read(length).decode())
        except ValueError as error:
            raise TraceError(f"{path} is no safetensors file: its header is no JSON.") from error
    start = 8 + length
    data = np.memmap(path, np.uint8, "r", start, (size - start,)) if size > start else None
    tensors = header if isinstance(header, dict) else {}
    tensors.pop("__metadata__", None)
    for long_name, entry in tensors.items():
        name = long_name[:_LONGEST_NAME]
        try:
            itemsize = _SAFETENSORS_BYTES[entry["dtype"]]
            shape = _whole_numbers(entry["shape"], _MOST_DIMS)
            first, last = _whole_numbers(entry["data_offsets"], 2)
        except (LookupError, TypeError, ValueError) as error:
            raise TraceError(
                f"{path}: tensor {name!r} has no dtype, shape and offsets."
            ) from error
        if data is None or not 0 <= first < last <= len(data):
            raise TraceError(f"{path}: tensor {name!r} is said to be where the file is not.")
        _check_size(path, shape, itemsize, last - first)
        yield name, (data[first:last], _as_bytes(shape, itemsize))


def _whole_numbers(given: Any, most: int) -> tuple[int, ...]:
    """Sizes that a header gives; raises for what are none, or are too many or too large."""
    if len(given) > most or not all(type(n) is int and 0 <= n <= 2**62 for n in given):
        raise ValueError("they are no sizes")
    return tuple(given)


def read_table(path: Path, pages: int) -> NDArray[np.int64]:
    """A request's pages in logical order: integers in a ``.npy`` file.

    Raises ``TraceError`` for another file, or a page that the dump does not have.
    """
    try:
        open_regular(path).close()
        numbers, _ = _read_npy(path, path.stat().st_size)
        if numbers.dtype == bool:
            raise TypeError("they are true or false")
        table = numbers.reshape(-1).astype(np.int64, casting="safe")
    except (OSError, ValueError, TypeError, TraceError) as error:
        said = cut(str(error), _LONGEST_QUOTE)
        raise TraceError(
            f"{path} is no table of pages, integers in a .npy file: {said}."
        ) from error
    if len(table) > pages:
        raise TraceError(
            f"{path} names {len(table):,} pages, and the dump has {pages:,}: a request has each "
            "once, without what pads a table."
        )
    beyond = table[(table < 0) | (table >= pages)]
    if len(beyond):
        raise TraceError(f"{path} names page {beyond[0]}: the dump has pages 0 … {pages - 1}.")
    return table


SURE = 0.75  # share of the nonzero rows that must fit a record for it to be recognised
_FEWEST_ROWS = 4
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


@dataclass(frozen=True)
class Candidate:
    """How well a record fits."""

    record: Record
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


def split_signs(entry: fm.EntryFormat, codes: Bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """Codes without signs, and signs: unsigned integers [n, value dims] each."""
    if entry.value == "bf16":
        words = np.ascontiguousarray(codes).view(np.uint16)
        return words & 0x7FFF, words >> 15
    if entry.value == "e4m3":
        return codes & 0x7F, codes >> 7
    nibbles = np.stack([codes & 0xF, codes >> 4], axis=-1).reshape(len(codes), -1)
    return nibbles & 7, nibbles >> 3


def _peaks(entry: fm.EntryFormat, codes: Bytes) -> Bytes:
    """The largest code of each group without its sign: uint8[n, groups]."""
    sizes, _ = split_signs(entry, codes)
    largest: Bytes = sizes.reshape(len(codes), entry.groups, entry.group).max(axis=2)
    order = np.arange(entry.groups).reshape(entry.scale_columns, -1).T.reshape(-1)
    return largest[:, order]


def _exponents(entry: fm.EntryFormat, scales: Bytes) -> tuple[NDArray[np.uint32], Mask]:
    """The exponent of every scale, and whether its other bits are wrong: [n, groups] each.

    Of an e4m3 scale the whole code stands for its exponent.
    """
    if entry.scale == "e4m3":
        return scales.astype(np.uint32), np.asarray((scales == 0) | (scales >= _E4M3_NAN))
    if entry.scale == "ue8m0x4":
        fours = scales.reshape(len(scales), -1, 4)
        first = fours[:, :, 0]
        return first.astype(np.uint32), np.asarray((fours != first[:, :, None]).any(axis=2))
    if entry.scale == "ue8m0":
        return scales.astype(np.uint32), np.zeros(scales.shape, bool)
    bits = np.ascontiguousarray(scales).view(np.uint32)
    wrong = np.asarray((bits & 0x7FFFFF != 0) & (entry.scale == "fp32"))
    return (bits >> 23).astype(np.uint32), wrong


def oddities(entry: fm.EntryFormat, parsed: Parsed) -> Mask:
    """What speaks against a format in each row: bool[4, n].

    A value that is not a number; a scale, or its padding, that no writer gives; a group whose
    largest code is too small for its scale; bf16 channels of no everyday size.
    """
    channels = parsed.codes if entry.value == "bf16" else parsed.tail
    if entry.value != "bf16" and not (entry.tail_dims and entry.tail == "bf16"):
        channels = channels[:, :0]
    words = np.ascontiguousarray(channels).view(np.uint16)
    powers, (low, high) = words >> 7 & 0xFF, _BF16_EXPONENTS
    nan = (powers == 0xFF).any(axis=1)
    if entry.value == "e4m3":
        nan |= ((parsed.codes & 0x7F) == _E4M3_NAN).any(axis=1)
    tails = (((powers < low) | (powers > high)) & (words & 0x7FFF != 0)).any(axis=1)
    if entry.scale == "none":
        none = np.zeros_like(nan)
        return np.stack([nan, none, none, tails])
    used = entry.scale_bytes - entry.scale_padding
    exponents, odd = _exponents(entry, parsed.scales[:, :used])
    if entry.scale != "e4m3":
        low, high = _EXPONENTS
        odd = odd | (exponents < low) | (exponents > high)  # negative ones are above
    largest = _peaks(entry, parsed.codes)
    some = largest > 0  # of a group of zeros any scale is right
    scales = (odd & some).any(axis=1) | parsed.scales[:, used:].any(axis=1)
    least = _LEAST_PEAK[entry.scale] if entry.value == "e4m3" else _FOUR_BIT_PEAK[entry.scale]
    # where a scale is as small as its writer gives (DeepSeek's 105, FlashMLA's 113), values may be
    # smaller
    floor = 1 if entry.scale == "e4m3" else 113
    small = ((largest < least) & some & (exponents > floor)).any(axis=1)
    return np.stack([nan, scales, small, tails])


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
    usual = {replace(entry, name="", page_align=1) for _, _, entry, _ in rows}
    for name, of, entry, _ in [*rows]:
        # the same record with its scales behind all rows instead of in them, or so
        scales_at: fm.ScalePlace = "page_end" if entry.inline_scales else "row_end"
        other = replace(entry, scales_at=scales_at, page_align=1)
        if entry.scale != "none" and replace(other, name="") not in usual:
            rows.append((name, of, other, False))
    return tuple(rows)


def candidates(dump: Dump, entries: int | None = None, name: str | None = None) -> list[Candidate]:
    """Records that a dump may hold, the best first; those without a mark are not among them."""
    found: dict[tuple[fm.EntryFormat, int], Candidate] = {}
    sizes = {int(np.prod(dump.shape[k:])) for k in range(1, len(dump.shape))}
    tried = product(known_records(), (entries,) if entries else _ENTRIES)
    for (format_name, of, entry, usual), count in tried:
        layout, is_marked = fm.PageLayout(entry, count), entry.scale != "none"
        size = layout.page_bytes
        wanted = format_name == name if name else is_marked
        if not wanted:
            continue
        if size == entry.entry_bytes and not entry.inline_scales and is_marked:
            continue  # a page of one row, which is an interleaved one
        if len(dump.data) % size or (sizes and not any(s % size == 0 for s in sizes)):
            continue
        parsed = parse(layout, dump.data.reshape(-1, size)[:_SAMPLED_PAGES])
        rows = int(parsed.live.sum())
        if rows < min(_FEWEST_ROWS, len(parsed.live)):
            continue
        fits = ~oddities(entry, parsed)[:, parsed.live].any(axis=0)
        share = float(fits.mean()) if rows and _signs_are_mixed(entry, parsed) else 0.0
        key = entry, 0 if entry.inline_scales else count
        found.setdefault(key, Candidate(Record(format_name, of, layout, usual), share, rows))
    return sorted(found.values(), key=lambda each: (-each.fits, not each.record.usual))


def _signs_are_mixed(entry: fm.EntryFormat, parsed: Parsed) -> bool:
    """Whether many codes are negative and many positive, of even and odd channels; text is not."""
    _, signs = split_signs(entry, parsed.codes[parsed.live])
    halves = [signs] if entry.value in ("bf16", "e4m3") else [signs[:, ::2], signs[:, 1::2]]
    return all(_FEWEST_SIGNS <= each.mean() <= 1 - _FEWEST_SIGNS for each in halves)


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
