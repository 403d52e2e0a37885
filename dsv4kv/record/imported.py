"""A record of a profile of another program: kept in place of the profiler's own file."""

import hashlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dsv4kv import __version__
from dsv4kv.record.profile import Profile
from dsv4kv.record.schema import NOTHING_CHECKED, Case, Environment, RunRecord
from dsv4kv.record.store import new_run_id

ELSEWHERE = "not in the profile"
"""Platform and Python of a run that a profile says nothing of."""


def record_of_profile(profile: Profile, path: Path, step: str, argv: Sequence[str]) -> RunRecord:
    """Make a record of a profile that was read from a file.

    Machine and software are unknown: those of this process are not where the profile is from.

    Args:
        profile: What the file says, with its kernel table.
        path: The file.
        step: Range that was taken for a step.
        argv: Command line that read it.
    """
    assert profile.table is not None
    now = datetime.now(UTC)
    moment = now.isoformat(timespec="seconds")
    case = Case(
        axis={},
        status="complete",
        error=None,
        config={"name": path.name},
        device="cuda" if profile.table.devices else "cpu",
        backend=ELSEWHERE,
        cache=None,
        totals=None,
        operations=[],
        latencies=[],
        memcpy=None,
        verification=NOTHING_CHECKED,
        profile=profile,
    )
    return RunRecord(
        run_id=new_run_id(f"profile-{path.name}", now),
        started_utc=moment,
        ended_utc=moment,
        status="complete",
        argv=list(argv),
        reproduce=shlex.join(["dsv4kv", "profile", "--from", str(path), "--step", step]),
        config_source=str(path),
        config_sha256=_sha256(path),
        trace_source=None,
        trace_sha256=None,
        seed=0,
        environment=Environment(
            hostname_sha256="",
            platform=ELSEWHERE,
            python=ELSEWHERE,
            cpu=None,
            cpu_count=None,
            memory_bytes=None,
            load_1min=None,
            governor=None,
            versions={"dsv4kv": __version__},
            variables={},
            git_sha=None,
            git_dirty=None,
        ),
        cases=[case],
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
