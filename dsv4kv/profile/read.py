"""Profiles read from files; a profiler's own file becomes a record, which is all to keep of it."""

import importlib
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv import __version__
from dsv4kv.errors import ProfileError
from dsv4kv.files import hash_file, open_regular, temporary_folder, unpack
from dsv4kv.profile import trace as tr
from dsv4kv.profile.kineto import read_kineto
from dsv4kv.profile.launch import NCU_METRICS, export_nsys, find_profiler
from dsv4kv.profile.nsys import read_nsys
from dsv4kv.profile.table import Rule, bounded_matching, build_table, shipped_rules
from dsv4kv.profile.trace import STEP, Trace
from dsv4kv.runs.parts import Profile
from dsv4kv.runs.points import make_case
from dsv4kv.runs.schema import Environment, RunRecord
from dsv4kv.runs.store import load_record, new_run_id

_RECORD = re.compile(rb'"schema_version"\s*:\s*\d')  # others have a text there
_OF_TRACES = ('"traceEvents"', '"schemaVersion"', '"ph"')
_HEAD_CHARACTERS = 200
_HEAD_BYTES = 1 << 16
_EXPORT_TIMEOUT_S = 600.0
_SQLITE = b"SQLite format 3\0"
_DATABASES = (".sqlite", ".sqlite3", ".db")
_REPORTS = (".nsys-rep", ".qdrep")
_TRACES = (".json", ".json.gz")


def read_profile(path: Path, step: str = STEP) -> Trace:
    """Read ``.nsys-rep``, ``.sqlite``, ``.json``, ``.json.gz`` or ``.ncu-rep``.

    Ranges that fit ``step`` are the steps. A report of nsys is exported by nsys, unless an export
    is next to it. A database and a trace may have any name. Raises ``ProfileError``.
    """
    name = path.name.lower()
    if name.endswith(_REPORTS):
        return _read_report(path, step)
    if name.endswith(".ncu-rep"):
        return read_ncu(path)
    packed, begin = _head(path)
    if packed and begin.startswith(_SQLITE):
        raise ProfileError(f"{path} is a packed database: unpack it first, with gunzip.")
    if begin.startswith(_SQLITE) or name.endswith(_DATABASES):
        return read_nsys(path, step)
    if name.endswith(_TRACES) or _is_json(begin):
        return read_kineto(path, step)
    raise ProfileError(
        f"{path} is no profile that can be read: .nsys-rep, .sqlite, .ncu-rep are, and .json or "
        ".json.gz of torch.profiler. Other exports of nsys (parquet, arrow, hdf, text) are not: "
        "export with `nsys export --type=sqlite`."
    )


def names_profile(name: str) -> bool:
    """Whether a file's name or its content is of a profiler, or of a run record."""
    return name.lower().endswith((*_DATABASES, *_TRACES)) or is_profile(Path(name))


def is_profile(path: Path) -> bool:
    """Whether a file is a profiler's or a run record, by its content; reports by their names."""
    if path.name.lower().endswith((*_REPORTS, ".ncu-rep")):
        return True
    _, begin = _head(path)
    of_trace = any(key.encode() in begin for key in _OF_TRACES) or _RECORD.search(begin)
    return bool(_is_json(begin) and of_trace) or begin.startswith(_SQLITE)


def _head(path: Path) -> tuple[bool, bytes]:
    """Whether a file is packed, and how its content begins; nothing where it cannot be read."""
    with suppress(OSError, EOFError, zlib.error), open_regular(path) as file:
        content = unpack(file)
        return content is not file, content.read(_HEAD_BYTES)
    return False, b""


def _is_json(text: bytes) -> bool:
    return text.lstrip()[:1] in (b"{", b"[")


def _read_report(path: Path, step: str) -> Trace:
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of nsys, .nsys-rep.")
    exported, nsys = path.with_suffix(".sqlite"), find_profiler("nsys")
    is_old = exported.is_file() and exported.stat().st_mtime < path.stat().st_mtime
    if exported.is_file() and not (is_old and nsys):
        trace = read_nsys(exported, step)
        if is_old:
            old = f"{exported.name} is older than {path.name}: export it again."
            return replace(trace, warnings=[old, *trace.warnings])
        return trace
    if nsys is None:
        raise ProfileError(
            f"{path} has to be exported by nsys, which is not installed here: where it is, run "
            f"`nsys export --type=sqlite {path.name}`, and show {exported.name} here."
        )
    with temporary_folder("dsv4kv-export-") as folder:
        database = folder / exported.name
        return read_nsys(export_nsys(nsys, path, database, _EXPORT_TIMEOUT_S).file, step)


@dataclass(frozen=True)
class Source:
    """A profile, and where it is from."""

    profile: Profile  # with its kernel table
    record: RunRecord | None = None  # that it was read from; None of a profiler's own file


def load_profile(path: Path, step: str, rules: Sequence[Rule] = ()) -> Source:
    """Read a profiler's file by ``rules`` and the shipped ones, or a record's first profile.

    Raises ``ProfileError``.
    """
    if path.suffix != ".json" or not is_record(path):
        trace = read_profile(path, step)
        with bounded_matching() if rules else nullcontext():
            table = build_table(trace, [*rules, *shipped_rules()])
        profile = Profile(
            why=f"read from {path.name}",
            command=[],
            files=[str(path)],
            step_requests=[],
            useful_bytes={},
            table=table,
        )
        return Source(profile)
    record = load_record(path)
    for case in record.cases:
        if case.profile is not None and case.profile.table is not None:
            return Source(case.profile, record)
    raise ProfileError(f"{path} is a run record without a profile: make one with dsv4kv profile.")


def is_record(path: Path) -> bool:
    """Whether a JSON file is a run record."""
    return bool(_RECORD.search(_head(path)[1][:_HEAD_CHARACTERS]))


ELSEWHERE = "not in the profile"
"""Platform and Python of a run that a profile says nothing of."""


def record_of_profile(profile: Profile, path: Path, step: str, argv: Sequence[str]) -> RunRecord:
    """Make a record of a profile that was read from a file; its machine is unknown."""
    assert profile.table is not None
    now = datetime.now(UTC)
    moment = now.isoformat(timespec="seconds")
    content_sha256 = hash_file(path)
    steps = [] if step == STEP else ["--step", step]
    case = make_case(
        config={"name": path.name},
        device="cpu" if any(r.kind in ("op", "range") for r in profile.table.kernels) else "cuda",
        backend=ELSEWHERE,
        profile=profile,
    )
    nowhere: dict[str, Any] = dict.fromkeys(Environment.model_fields) | {
        "hostname_sha256": "",
        "platform": ELSEWHERE,
        "python": ELSEWHERE,
        "versions": {"dsv4kv": __version__},
        "variables": {},
    }
    return RunRecord(
        run_id=new_run_id(f"profile-{path.name}", now),
        started_utc=moment,
        ended_utc=moment,
        status="complete",
        argv=list(argv),
        reproduce=shlex.join(["dsv4kv", "profile", str(path), *steps]),
        config_source=str(path),
        config_sha256=content_sha256,
        trace_source=None,
        trace_sha256=None,
        seed=0,
        environment=Environment(**nowhere),
        cases=[case],
    )


# ---- reports of ncu, through NVIDIA's ``ncu-report`` package (extra ``profile``) ----------------


Metrics = dict[str, tuple[float | str, str]]
"""Values of a kernel that were collected, and their units."""

_DURATION, *_DRAM = NCU_METRICS
_DEVICE = "device__attribute_display_name"
_WANTED = (*NCU_METRICS, _DEVICE)
_UNITS = {
    **dict.fromkeys(("s", "second"), 1000000000.0),
    **dict.fromkeys(("ms", "msecond", "Mbyte"), 1000000.0),
    **dict.fromkeys(("us", "usecond", "Kbyte"), 1000.0),
    "Gbyte": 1e9,
}
"""What a value in this unit is multiplied by to be ns or bytes."""
_MOST = 2.0**53  # ns are 104 days; the sum of a thousand kernels' fits an int64


def read_ncu(path: Path) -> tr.Trace:
    """Read a report: every kernel with its time and DRAM bytes.

    ncu runs every kernel alone, some of them several times, so there are no steps and no gaps.
    Raises ``ProfileError``.
    """
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of ncu, .ncu-rep.")
    names, rows, devices = tr.Names(), [], dict[str, None]()
    for title, metrics in _kernels(path):
        rows.append((names.number(title), *_numbers(metrics)))
        if _DEVICE in metrics:
            devices[str(metrics[_DEVICE][0])] = None
    if not rows:
        raise ProfileError(f"{path} has no kernels: ncu chose none, or it is no report.")
    name, timed, moved = np.array(rows, dtype=np.int64).T
    duration = np.maximum(timed, 0)
    ends = np.cumsum(duration)
    kind = tr.constant(len(name), tr.KERNEL)
    warnings, untimed = [], int(np.count_nonzero(timed == tr.NONE))
    if untimed:
        share = f"{untimed:,} of {len(timed):,} kernels"
        warnings = [f"{share} have no {_DURATION} and count as 0: collect it"]
    return tr.Trace(
        tool="ncu",
        names=names.listed(),
        work=tr.make_work(name, kind, ends - duration, ends, bytes=moved),
        steps_ns=np.empty((0, 2), dtype=np.int64),
        devices=dict(enumerate(devices)),
        warnings=warnings,
        notes=["ncu runs each kernel by itself: its times have no gaps"],
    )


def reader() -> Any:
    """The package ``ncu_report``; raises ``ProfileError`` where it is not installed."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        raise ProfileError(
            "reports of ncu are read by the ncu-report package: pip install 'dsv4kv[profile]'."
        ) from None


def _kernels(path: Path) -> Iterator[tuple[str, Metrics]]:
    package = reader()
    try:
        context = package.load_report(str(path))
        for i in range(context.num_ranges()):
            part = context.range_by_idx(i)
            for j in range(part.num_actions()):
                action = part.action_by_idx(j)
                found: Metrics = {}
                for name in _WANTED:
                    metric = action.metric_by_name(name)
                    with suppress(ValueError):  # no number
                        if metric is not None:
                            value = metric.as_string() if name == _DEVICE else metric.as_double()
                            found[name] = value, str(metric.unit() or "")
                yield str(action.name()), found
    except Exception as error:  # the package raises whatever its C++ does
        raise ProfileError(f"{path} cannot be read as a report of ncu ({error}).") from None


def _numbers(metrics: Metrics) -> tuple[int, int]:
    """Duration in ns and DRAM bytes."""
    found: dict[str, int] = {}  # in ns or bytes; what is no number is left out
    for name, (value, unit) in metrics.items():
        with suppress(ValueError):
            number = float(value) * _UNITS.get(unit, 1.0)
            if abs(number) < _MOST:
                found[name] = round(number)
    read, written = (found.get(name) for name in _DRAM)
    moved = tr.NONE if read is None or written is None else read + written
    return found.get(_DURATION, tr.NONE), moved
