"""Profiles from files: of a profiler, or in a run record."""

import zlib
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.chrome_file import open_text
from dsv4kv.measure.profilers.classify import shipped_rules
from dsv4kv.measure.profilers.files import read_profile
from dsv4kv.report.kernel_table import build_table
from dsv4kv.report.profile_record import KernelTable, Profile
from dsv4kv.report.store import load_record
from dsv4kv.report.yardstick import Yardstick, yardsticks

_RECORD = '"schema_version"'
_HEAD_CHARACTERS = 200


@dataclass(frozen=True)
class Source:
    """A profile, and what its rates are held against; None where nothing was measured."""

    profile: Profile
    yardstick: Yardstick | None

    @property
    def table(self) -> KernelTable:
        """Its kernel table."""
        assert self.profile.table is not None
        return self.profile.table


def load_profile(path: Path, step: str) -> Source:
    """Read what a profiler wrote, or the first profile in a run record.

    Raises:
        ProfileError: It cannot be read, or the record has no profile.
        RecordError: It is a damaged record.
    """
    if path.suffix == ".json" and _is_record(path):
        return _from_record(path)
    table = build_table(read_profile(path, step), shipped_rules())
    return Source(
        Profile(
            why=f"read from {path.name}",
            command=[],
            files=[str(path)],
            step_requests=[],
            useful_bytes={},
            table=table,
        ),
        yardstick=None,
    )


def _is_record(path: Path) -> bool:
    with open_text(path) as file:
        try:
            return _RECORD in file.read(_HEAD_CHARACTERS)
        except (OSError, EOFError, zlib.error):  # damaged: its reader says how
            return False


def _from_record(path: Path) -> Source:
    for case in load_record(path).cases:
        if case.profile is not None and case.profile.table is not None:
            return Source(case.profile, next(iter(yardsticks(case)), None))
    raise ProfileError(f"{path} is a run record without a profile: make one with dsv4kv profile.")
