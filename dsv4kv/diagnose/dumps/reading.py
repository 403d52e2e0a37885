"""Tensors saved from an engine, as bytes.

A file is trusted with nothing: a header is read before anything is allocated, sizes are held
against the file's own, and no code of a pickle runs.
"""

import json
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

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
_LONGEST_GLOBAL = 1_000
_MOST_PICKLE = 2**22  # some 30,000 tensors
_MOST_DIMS = 32
_LONGEST_NAME = 200
_LONGEST_QUOTE = 300  # of a file's own words in a sentence
_NPY = b"\x93NUMPY"
_SAFETENSORS_BYTES = {
    "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_TORCH_BYTES = {
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "HalfStorage": 2, "BFloat16Storage": 2,
    "ShortStorage": 2, "IntStorage": 4, "FloatStorage": 4, "LongStorage": 8, "DoubleStorage": 8,
    "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes of an element, by the name of a storage, or of a dtype that has none of its own."""


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
    """Read ``.npy``, ``.safetensors``, what ``torch.save`` wrote, or a tier's bytes as they are.

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
    elif head[:4] == b"PK\x03\x04":
        found = dict(_read_torch(path, tensor))
    elif head[:1] == b"\x80" and path.suffix in {".pt", ".pth", ".pkl", ".pickle"}:
        raise TraceError(
            f"{path} is a pickle, which runs code when it is read: save it with torch.save of "
            "torch 1.6 or newer, as .safetensors, or with numpy.save."
        )
    else:
        _check_size(path, (size,), 1, size)
        found = {"": (np.memmap(path, np.uint8, "r"), (size,))}
    names = list(found)
    listed = _quote(", ".join(names[:20]) or "none")
    if tensor is not None and tensor not in found:
        raise TraceError(f"{path} has no tensor {_quote(tensor)!r}: it has {listed}.")
    if not names:
        raise TraceError(f"{path} holds no tensor, or only deeper than a dict or list of them.")
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


_UNREAD: Tensor = (np.empty(0, np.uint8), ())


def _read_torch(path: Path, wanted: str | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a ``torch.save`` file: one, or a dict or list of them.

    The wanted one, or the only one, is mapped; a pickle can name millions of others.
    """
    try:
        with path.open("rb", 0) as raw, zipfile.ZipFile(_Bounded(raw)) as archive:
            records = {each.filename.partition("/")[2]: each for each in archive.infolist()}
            pickled = records.get("data.pkl")
            if pickled is None:
                raise TraceError(f"{path} is a zip file and not of torch.save: unpack it.")
            if pickled.file_size > _MOST_PICKLE:
                raise TraceError(
                    f"{path} describes its tensors in {pickled.file_size:,} B; {_MOST_PICKLE:,} B "
                    "are read: save the tensors of pages alone."
                )
            saved = _Unpickler(BytesIO(archive.read(pickled))).load()
            tensors = dict(_tensors(saved))
            for name, each in tensors.items():
                is_read = name == wanted or len(tensors) == 1
                yield name, _map_tensor(path, name, each, records) if is_read else _UNREAD
    except (*_DAMAGED, pickle.PickleError, zipfile.BadZipFile, zlib.error) as error:
        reason = _quote(error) or type(error).__name__
        raise TraceError(
            f"{path} is not read: it holds more than tensors, or is damaged ({reason})."
        ) from error


_DAMAGED = (
    ArithmeticError, AttributeError, EOFError, LookupError, NotImplementedError, OSError,
    RuntimeError, TypeError, ValueError, struct.error,
)  # fmt: skip


class _Bounded:
    """A file that limits every read, whatever length its own header asks for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(_MOST_HEADER + 1 if size < 0 else min(size, _MOST_HEADER + 1))
        if len(found) > _MOST_HEADER:
            raise ValueError(f"more than {_MOST_HEADER:,} B in one read")
        return found


@dataclass(frozen=True)
class _Named:
    """A class or function that a pickle names; nothing is looked up, and nothing called."""

    name: str
    arguments: tuple[Any, ...] = ()


class _Dict(dict[Any, Any]):
    """A dict of plain keys: to hash a tuple of tuples may take for ever."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str | int | float):
            super().__setitem__(key, value)


def _add_dict(unpickler: Any) -> None:
    unpickler.append(_Dict())


def _reduce(unpickler: Any) -> None:
    """Keep what a call is given; a copy of that for every call would fill the memory."""
    arguments, called = unpickler.stack.pop(), unpickler.stack.pop()
    if type(called) is not _Named or type(arguments) is not tuple:  # a list can hold itself
        raise ValueError("a call that is none")
    is_dict = called.name == "collections.OrderedDict"
    unpickler.append(_Dict() if is_dict else _Named(called.name, arguments))


def _build(unpickler: Any) -> None:
    unpickler.stack.pop()  # attributes


_OWN = {pickle.EMPTY_DICT[0]: _add_dict, pickle.REDUCE[0]: _reduce, pickle.BUILD[0]: _build}
_HASHED_OR_HUGE = (
    pickle.DICT, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8,
)  # fmt: skip


class _Unpickler(pickle._Unpickler):
    """Plain values, containers, and ``_Named`` in place of all else.

    Operations that hash their arguments, or that allocate by a number alone, are unknown.
    """

    dispatch = {  # noqa: RUF012
        key: call
        for key, call in (pickle._Unpickler.dispatch | _OWN).items()
        if bytes([key]) not in _HASHED_OR_HUGE
    }

    def find_class(self, module: str, name: str) -> _Named:
        """Nothing is imported."""
        if len(module) + len(name) > _LONGEST_GLOBAL:
            raise ValueError("a name of thousands of characters")
        return _Named(f"{module}.{name}")

    def persistent_load(self, arguments: Any) -> _Named:
        """A storage."""
        return _Named("storage", arguments)


def _tensors(saved: Any) -> Iterator[tuple[str, _Named]]:
    items: Iterable[tuple[Any, Any]] = [("", saved)]
    if isinstance(saved, dict | list | tuple):
        items = saved.items() if isinstance(saved, dict) else enumerate(saved)
    for name, each in items:
        while isinstance(each, _Named) and each.name == "torch._utils._rebuild_parameter":
            each = each.arguments[0]  # noqa: PLW2901
        if isinstance(each, _Named) and each.name.startswith("torch._utils._rebuild_"):
            yield str(name)[:_LONGEST_NAME], each


def _map_tensor(
    path: Path, name: str, tensor: _Named, records: Mapping[str, zipfile.ZipInfo]
) -> Tensor:
    def refusal(kind: str) -> TraceError:
        what = f"{path}: tensor {name!r} is no array of numbers on a CPU ({kind})"
        return TraceError(f"{what}: save .cpu().contiguous() of it.")

    kind = tensor.name.rpartition("_rebuild_")[2]
    if kind not in ("tensor", "tensor_v2", "tensor_v3"):
        raise refusal(_quote(kind))
    storage, offset, shape, strides = tensor.arguments[:4]
    _, typed, key, _, _ = storage.arguments
    dtype = tensor.arguments[6].name if kind == "tensor_v3" else typed.name
    itemsize, record = _TORCH_BYTES[dtype.rpartition(".")[2]], records["data/" + key]
    numbers = (offset, *shape, *strides)
    if not all(isinstance(each, int) and 0 <= each <= MOST_BYTES for each in numbers):
        raise ValueError(f"tensor {name!r} of sizes that are none")
    if not 0 < len(shape) == len(strides) <= _MOST_DIMS:
        raise refusal(f"{len(shape)} dimensions")
    size = path.stat().st_size
    if not 0 < math.prod(shape) * itemsize <= size:
        raise TraceError(
            f"{path}: tensor {name!r} says that it holds {math.prod(shape) * itemsize:,} B, and "
            f"the file is {size:,} B."
        )
    with path.open("rb") as file:  # the record's own header says where its bytes begin
        file.seek(record.header_offset)
        header = file.read(30)
    start = record.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    stored = record.compress_type == zipfile.ZIP_STORED
    if not stored or (last + 1) * itemsize > record.file_size or start + record.file_size > size:
        raise ValueError(f"tensor {name!r} is said to be where the file is not")
    held = np.memmap(path, np.uint8, "r", start, (record.file_size,))
    rows = held[: record.file_size // itemsize * itemsize].reshape(-1, itemsize)[offset:]
    steps = (*(stride * itemsize for stride in strides), 1)
    whole = np.lib.stride_tricks.as_strided(rows, (*shape, itemsize), steps, writeable=False)
    return np.ascontiguousarray(whole).reshape(-1), _as_bytes(tuple(shape), itemsize)


def read_table(path: Path, pages: int) -> NDArray[np.int64]:
    """A request's pages in logical order: a one-dimensional ``.npy`` of integers, or JSON.

    Raises ``TraceError`` for another file, or a page that the dump does not have.
    """
    try:
        if path.suffix == ".json":
            with open_regular(path) as file:
                numbers = np.array(json.loads(file.read(_MOST_HEADER)))
        else:
            open_regular(path).close()
            numbers, _ = _read_npy(path, path.stat().st_size)
        if numbers.dtype == bool:
            raise TypeError("they are true or false")
        table = numbers.reshape(-1).astype(np.int64, casting="safe")
    except (OSError, ValueError, TypeError, MemoryError, RecursionError, TraceError) as error:
        raise TraceError(
            f"{path} is no table of pages, integers as .npy or JSON: {_quote(error)}."
        ) from error
    beyond = table[(table < 0) | (table >= pages)]
    if len(beyond):
        raise TraceError(f"{path} names page {beyond[0]}: the dump has pages 0 … {pages - 1}.")
    return table
