"""Tensors that somebody saved from an engine, as bytes.

A file is trusted with nothing: a header is read before anything is allocated, sizes are held
against the file's own, and no code of a pickle runs.
"""

import json
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.reading import open_regular, parse_json

Bytes = NDArray[np.uint8]

MOST_BYTES = 2**36
"""The largest tensor that is looked at: it is mapped, and read page by page."""

_MOST_HEADER = 2**24
_NPY = b"\x93NUMPY"
_SAFETENSORS_BYTES = {
    "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Dump:
    """One tensor of a file.

    Attributes:
        path: Of the file.
        name: Of the tensor in it; empty where a file is one tensor.
        data: All of its bytes, uint8[n].
        shape: Its sizes with elements as bytes: the last one is a row's. Of a file without a
            shape one size.
    """

    path: Path
    name: str
    data: Bytes
    shape: tuple[int, ...]

    @property
    def title(self) -> str:
        """File and tensor."""
        return f"{self.path.name}:{self.name}" if self.name else self.path.name


def read_dump(path: Path, tensor: str | None = None) -> Dump:
    """Read ``.npy``, ``.safetensors``, what ``torch.save`` wrote, or a tier's bytes as they are.

    Raises:
        TraceError: A file that cannot be read, or that is not what it says it is.
    """
    try:
        with open_regular(path) as file:
            head, size = file.read(16), path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}.") from error
    if not size:
        raise TraceError(f"{path} is empty: there is no page in it.")
    if head.startswith(_NPY):
        found = {"": _read_npy(path, size)}
    elif path.suffix == ".safetensors":
        found = dict(_read_safetensors(path, size))
    elif zipfile.is_zipfile(path):
        found = dict(_read_torch(path))
    elif head[:1] == b"\x80" and path.suffix in {".pt", ".pth", ".pkl", ".pickle"}:
        raise TraceError(
            f"{path} is a pickle, which runs code when it is read: save it with torch.save of "
            "torch 1.6 or newer, as .safetensors, or with numpy.save."
        )
    else:
        found = {"": (np.memmap(path, np.uint8, "r"), (size,))}
    name = _choose(path, list(found), tensor)
    data, shape = found[name]
    return Dump(path, name, data, shape)


def _choose(path: Path, names: list[str], asked: str | None) -> str:
    if asked is not None and asked not in names:
        raise TraceError(f"{path} has no tensor {asked!r}: it has {', '.join(names) or 'none'}.")
    if not names:
        raise TraceError(f"{path} holds no tensor, or only deeper than a dict or list of them.")
    if asked is None and len(names) != 1:
        raise TraceError(
            f"{path} has {len(names)} tensors: name one with --tensor: {', '.join(names[:20])}."
        )
    return asked if asked is not None else names[0]


def _read_npy(path: Path, size: int) -> tuple[Bytes, tuple[int, ...]]:
    """Map an array, whose header is checked against the file first."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}[version]
            shape, columns_first, dtype = getattr(np.lib.format, read)(file, max_header_size=65536)
        except (ValueError, KeyError, SyntaxError, RecursionError, MemoryError) as error:
            raise TraceError(f"{path} has no header of numpy.save: {error}.") from error
        start = file.tell()
    if dtype.hasobject:
        raise TraceError(f"{path} holds Python objects, which are pickled: save numbers.")
    if columns_first and len(shape) > 1:
        raise TraceError(f"{path} is stored column by column: save numpy.ascontiguousarray of it.")
    _check_size(path, shape, dtype.itemsize, size - start)
    data = np.memmap(path, np.uint8, "r", start, (size - start,))
    return data, _as_bytes(shape, dtype.itemsize)


def _check_size(path: Path, shape: tuple[int, ...], itemsize: int, there: int) -> None:
    said = math.prod(shape) * itemsize
    if min(shape, default=1) < 0:
        raise TraceError(f"{path} says that a tensor's shape is {shape}.")
    if said != there or not 0 < said <= MOST_BYTES:
        raise TraceError(f"{path} says that it holds {said:,} B, and holds {there:,} B.")


def _as_bytes(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * itemsize) if shape else (itemsize,)


def _read_safetensors(
    path: Path, size: int
) -> Iterator[tuple[str, tuple[Bytes, tuple[int, ...]]]]:
    """Every tensor, by the format's own header: 8 bytes of length, JSON, data."""
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
        try:
            itemsize, shape = _SAFETENSORS_BYTES[entry["dtype"]], tuple(map(int, entry["shape"]))
            first, last = map(int, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"{path}: tensor {name!r} has no dtype, shape and offsets."
            ) from error
        if data is None or not 0 <= first < last <= len(data):
            raise TraceError(f"{path}: tensor {name!r} is said to be where the file is not.")
        _check_size(path, shape, itemsize, last - first)
        yield name, (data[first:last], _as_bytes(shape, itemsize))


def _read_torch(path: Path) -> Iterator[tuple[str, tuple[Bytes, tuple[int, ...]]]]:
    """A tensor, or a dict or list of them; nothing else is unpickled."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the unpickler raises whatever it meets
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(
            f"{path} is not read: it holds more than tensors, or is damaged ({reason[:120]})."
        ) from error
    size = path.stat().st_size
    for name, tensor in _tensors(loaded):
        _check_tensor(path, name, tensor, size)
        whole = tensor.detach().contiguous()
        shape = _as_bytes(tuple(whole.shape), whole.element_size())
        yield name, (whole.view(torch.uint8).reshape(-1).numpy(), shape)


def _check_tensor(path: Path, name: str, tensor: Any, size: int) -> None:
    """Refuse what has no bytes of its own in the file: torch would allocate it, or crash."""
    import torch

    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or not tensor.dim():
        kind = f"{tensor.layout}, {tensor.dtype}, {tensor.device}".replace("torch.", "")
        raise TraceError(
            f"{path}: tensor {name!r} is no array of numbers on a CPU ({kind}): save "
            ".cpu().contiguous() of it."
        )
    if not 0 < tensor.numel() * tensor.element_size() <= size:
        raise TraceError(
            f"{path}: tensor {name!r} says that it holds "
            f"{tensor.numel() * tensor.element_size():,} B, and the file is {size:,} B."
        )


def _tensors(loaded: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(loaded, torch.Tensor):
        yield "", loaded
    elif isinstance(loaded, dict | list | tuple):
        items = loaded.items() if isinstance(loaded, dict) else enumerate(loaded)
        yield from ((str(name), each) for name, each in items if isinstance(each, torch.Tensor))


def read_table(path: Path, pages: int) -> NDArray[np.int64]:
    """A request's pages in logical order: a one-dimensional ``.npy`` of integers, or JSON.

    Raises:
        TraceError: Not such a file, or a page that the dump does not have.
    """
    try:
        if path.suffix == ".json":
            with open_regular(path) as file:
                numbers = np.array(json.loads(file.read(_MOST_HEADER)))
        else:
            numbers = np.load(path, allow_pickle=False)
        if numbers.dtype == bool:
            raise TypeError("they are true or false")
        table = numbers.reshape(-1).astype(np.int64, casting="safe")
    except (OSError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise TraceError(
            f"{path} is no table of pages, integers as .npy or JSON: {error}."
        ) from error
    beyond = table[(table < 0) | (table >= pages)]
    if len(beyond):
        raise TraceError(f"{path} names page {beyond[0]}: the dump has pages 0 … {pages - 1}.")
    return table
