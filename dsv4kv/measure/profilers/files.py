"""Reads a profile from a file, whatever wrote it."""

import tempfile
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.commands import require_tool
from dsv4kv.measure.profilers.kineto import read_kineto
from dsv4kv.measure.profilers.ncu_report_file import read_ncu
from dsv4kv.measure.profilers.nsys_export import read_nsys
from dsv4kv.measure.profilers.ranges import STEP
from dsv4kv.measure.profilers.sessions import export_nsys
from dsv4kv.measure.profilers.trace import Trace

_EXPORT_TIMEOUT_S = 600.0
_SYSTEMS = "Nsight Systems"


def read_profile(path: Path, step: str = STEP) -> Trace:
    """Read ``.nsys-rep``, ``.sqlite``, ``.json``, ``.json.gz`` or ``.ncu-rep``.

    Ranges named ``step`` are the steps. A report of nsys is exported by nsys, unless an export
    lies beside it.

    Raises:
        ProfileError: It cannot be read, or what reads it is not installed.
    """
    name = path.name.lower()
    if name.endswith((".sqlite", ".db")):
        return read_nsys(path, step)
    if name.endswith((".nsys-rep", ".qdrep")):
        return _read_report(path, step)
    if name.endswith(".ncu-rep"):
        return read_ncu(path)
    if name.endswith((".json", ".json.gz")):
        return read_kineto(path, step)
    raise ProfileError(
        f"{path} is no profile by its name: .nsys-rep, .sqlite, .ncu-rep are, and .json or "
        ".json.gz of torch.profiler."
    )


def _read_report(path: Path, step: str) -> Trace:
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of nsys, .nsys-rep.")
    beside = path.with_suffix(".sqlite")
    if beside.is_file():
        return read_nsys(beside, step)
    nsys = require_tool("nsys", _SYSTEMS)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / beside.name
        return read_nsys(export_nsys(nsys, path, database, _EXPORT_TIMEOUT_S).file, step)
