"""Reads a profile from a file, whatever wrote it."""

import gzip
import zlib
from dataclasses import replace
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.files import open_regular, temporary_folder
from dsv4kv.measure.profilers.kineto import read_kineto
from dsv4kv.measure.profilers.ncu import read_ncu
from dsv4kv.measure.profilers.nsys import read_nsys
from dsv4kv.measure.profilers.ranges import STEP
from dsv4kv.measure.profilers.sessions import export_nsys, find_tool
from dsv4kv.measure.profilers.trace import Trace

_EXPORT_TIMEOUT_S = 600.0
_SQLITE = b"SQLite format 3\0"
_DATABASES = (".sqlite", ".sqlite3", ".db")
_REPORTS = (".nsys-rep", ".qdrep")
_TRACES = (".json", ".json.gz")


def read_profile(path: Path, step: str = STEP) -> Trace:
    """Read ``.nsys-rep``, ``.sqlite``, ``.json``, ``.json.gz`` or ``.ncu-rep``.

    Ranges that fit ``step`` are the steps. A report of nsys is exported by nsys, unless an export
    is next to it. A database and a trace may have any name.

    Raises:
        ProfileError: It cannot be read, or what reads it is not installed.
    """
    name = path.name.lower()
    if name.endswith(_REPORTS):
        return _read_report(path, step)
    if name.endswith(".ncu-rep"):
        return read_ncu(path)
    begin, unpacked = _first_bytes(path, packed=False), _first_bytes(path, packed=True)
    if unpacked == _SQLITE:
        raise ProfileError(f"{path} is a packed database: unpack it first, with gunzip.")
    if begin == _SQLITE or name.endswith(_DATABASES):
        return read_nsys(path, step)
    if name.endswith(_TRACES) or (unpacked or begin).lstrip()[:1] in (b"{", b"["):
        return read_kineto(path, step)
    raise ProfileError(
        f"{path} is no profile that can be read: .nsys-rep, .sqlite, .ncu-rep are, and .json or "
        ".json.gz of torch.profiler. Other exports of nsys (parquet, arrow, hdf, text) are not: "
        "export with `nsys export --type=sqlite`."
    )


def _first_bytes(path: Path, *, packed: bool) -> bytes:
    """How a file begins; empty where it cannot be read so."""
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            return (unpacked if packed else file).read(len(_SQLITE))
    except (OSError, EOFError, zlib.error):
        return b""


def _read_report(path: Path, step: str) -> Trace:
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of nsys, .nsys-rep.")
    exported, nsys = path.with_suffix(".sqlite"), find_tool("nsys")
    is_old = exported.is_file() and exported.stat().st_mtime < path.stat().st_mtime
    if exported.is_file() and not (is_old and nsys):
        trace = read_nsys(exported, step)
        if is_old:
            old = f"{exported.name} is older than {path.name}: export it again."
            return replace(trace, warnings=[old, *trace.warnings])
        return trace
    if nsys is None:
        raise ProfileError(
            f"{path} has to be exported by nsys, which is not on PATH: where it is, run "
            f"`nsys export --type=sqlite {path.name}`, and show {exported.name} here."
        )
    with temporary_folder("dsv4kv-export-") as folder:
        database = folder / exported.name
        return read_nsys(export_nsys(nsys, path, database, _EXPORT_TIMEOUT_S).file, step)
