"""Profiles a program with nsys or ncu, from the command to a file that can be read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.child import run_child
from dsv4kv.measure.profilers.commands import Command, nsys_export

LOG = "log.txt"
_ENDED_BY_NSYS = 143  # 128 + SIGTERM: nsys ends the program with its capture
_TOLD_LINES = 5
_NO_COUNTERS = "ERR_NVGPUCTRPERM"
_ALLOW_COUNTERS = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)


@dataclass(frozen=True)
class Profiled:
    """What a profiler left.

    Attributes:
        file: The file to read.
        files: All files.
        notes: Options that it did not know.
    """

    file: Path
    files: list[Path]
    notes: list[str]


def run_nsys(nsys: str, command: Command, report: Path, timeout_s: float) -> Profiled:
    """Profile with nsys and export the report.

    Raises:
        ProfileError: nsys fails, hangs, or leaves no report; the sentence names what is left.
    """
    log = report.with_name(LOG)
    with _naming_what_is_left(report.parent):
        code = run_child(command.words, log, timeout_s)
        if code not in (0, _ENDED_BY_NSYS):
            raise ProfileError(f"nsys ended with exit code {code}: {_last_lines(log)}")
        if not report.is_file():
            raise ProfileError(f"nsys wrote no report {report.name}: {_last_lines(log)}")
        return export_nsys(nsys, report, report.with_suffix(".sqlite"), timeout_s, command.dropped)


def export_nsys(
    nsys: str, report: Path, database: Path, timeout_s: float, dropped: Sequence[str] = ()
) -> Profiled:
    """Export a report into a database.

    Raises:
        ProfileError: The export fails or hangs.
    """
    export, log = nsys_export(nsys, report, database), database.with_name(LOG)
    code = run_child(export.words, log, timeout_s)
    if code or not database.is_file():
        raise ProfileError(
            f"nsys cannot export {report} (exit code {code}): {_last_lines(log)} If the report is "
            "of a newer nsys, export it with that one."
        )
    return Profiled(database, [report, database], _told([*dropped, *export.dropped], "nsys"))


def run_ncu(command: Command, report: Path, timeout_s: float) -> Profiled:
    """Profile with ncu.

    Raises:
        ProfileError: ncu fails, hangs, may not read the counters, or leaves no report.
    """
    log = report.with_name(LOG)
    with _naming_what_is_left(report.parent):
        code = run_child(command.words, log, timeout_s)
        if _NO_COUNTERS in log.read_text(errors="replace"):
            raise ProfileError(
                f"ncu may not read the GPU's counters ({_NO_COUNTERS}): run as root, or "
                f"`{_ALLOW_COUNTERS}` and reboot; in a container add --cap-add=SYS_ADMIN."
            )
        if code:
            raise ProfileError(f"ncu ended with exit code {code}: {_last_lines(log)}")
        if not report.is_file():
            raise ProfileError(
                f"ncu wrote no report {report.name}, so no kernel was chosen: {_last_lines(log)}"
            )
    return Profiled(report, [report], _told(command.dropped, "ncu"))


@contextmanager
def _naming_what_is_left(folder: Path) -> Iterator[None]:
    """Add the files of a folder to the sentence of an error."""
    try:
        yield
    except ProfileError as error:
        raise type(error)(f"{error} {name_files(folder)}") from None


def name_files(folder: Path) -> str:
    """A sentence that names what lies in a folder."""
    left = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    return f"Left behind: {', '.join(left)}." if left else "No file was left behind."


def _told(dropped: Sequence[str], tool: str) -> list[str]:
    if not dropped:
        return []
    return [f"this {tool} does not know {', '.join(dict.fromkeys(dropped))}: left out"]


def _last_lines(log: Path) -> str:
    """The end of a log, on one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    last = " | ".join(line for line in lines[-_TOLD_LINES:] if line)
    return f"it says: {last}." if last else "it says nothing."
