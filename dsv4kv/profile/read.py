"""Profiles read from files; a profiler's own file becomes a record, which is all to keep of it."""

import re
import shlex
import zlib
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsv4kv import __version__
from dsv4kv.errors import ProfileError
from dsv4kv.files import hash_file, open_regular, temporary_folder, unpack
from dsv4kv.profile.kineto import read_kineto
from dsv4kv.profile.launch import export_nsys, find_profiler
from dsv4kv.profile.ncu import read_ncu
from dsv4kv.profile.nsys import read_nsys
from dsv4kv.profile.table import Rule, bounded_matching, build_table, shipped_rules
from dsv4kv.profile.trace import STEP, Trace
from dsv4kv.runs.parts import KernelTable, Profile
from dsv4kv.runs.points import make_case
from dsv4kv.runs.quantities import Yardstick, yardsticks
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
    yardstick: Yardstick | None
    """Baseline of its rates; None where nothing was measured."""
    record: RunRecord | None = None  # that it was read from; None of a profiler's own file

    @property
    def table(self) -> KernelTable:
        """Its kernel table."""
        assert self.profile.table is not None
        return self.profile.table


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
        return Source(profile, yardstick=None)
    record = load_record(path)
    for case in record.cases:
        if case.profile is not None and case.profile.table is not None:
            return Source(case.profile, next(iter(yardsticks(case)), None), record)
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
