"""Tensors saved from an engine, as bytes.

A file is trusted with nothing: a header is read before anything is allocated, and sizes are held
against the file's own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.files import open_regular, parse_json

Bytes = NDArray[np.uint8]
Tensor = tuple[Bytes, tuple[int, ...]]
"""Its bytes and its sizes."""

MOST_BYTES = 2**36
"""The largest tensor that is looked at: it is mapped, and read page by page."""

_MOST_HEADER = 2**24
_MOST_NPY_HEADER = 2**16
_MOST_DIMS = 32
_LONGEST_NAME = 200
_LONGEST_QUOTE = 300  # of a file's own words in a sentence
_NPY = b"\x93NUMPY"
_PICKLES = {".pt", ".pth", ".pkl", ".pickle"}  # a tier's file may have one, too
_SAFETENSORS_BYTES = {
    "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Dump:
    """One tensor of a file."""

    path: Path  # of the file
    name: str  # of the tensor in it; empty where a file is one tensor
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
    if head.startswith(_NPY):
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
    names = list(found)
    listed = _quote(", ".join(names[:20]) or "none")
    if tensor is not None and tensor not in found:
        raise TraceError(f"{path} has no tensor {_quote(tensor)!r}: it has {listed}.")
    if not names:
        raise TraceError(f"{path} holds no tensor.")
    if tensor is None and len(names) != 1:
        raise TraceError(f"{path} has {len(names)} tensors: name one with --tensor: {listed}.")
    name = names[0] if tensor is None else tensor
    return Dump(path, name, *found[name])


def _quote(said: object) -> str:
    text = str(said)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


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
        raise TraceError(f"{path} has no header of numpy.save: {_quote(error)}.") from error
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
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        name = name[:_LONGEST_NAME]  # noqa: PLW2901
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
        raise TraceError(
            f"{path} is no table of pages, integers in a .npy file: {_quote(error)}."
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
