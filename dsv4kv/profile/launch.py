"""Profiles a program with nsys or ncu, from the command to a file that can be read."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.processes import Child, find_program, run_bounded, with_package
from dsv4kv.profile.trace import STEP
from dsv4kv.runs.environment import SPEED_VARIABLES

# All that a profiled program gets to see: reports of profilers keep the whole environment.
_KEPT_VARIABLES = (
    *SPEED_VARIABLES,
    *("CONDA_PREFIX", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "DSV4KV_CACHE_DIR", "HOME"),
    *("LANG", "LC_ALL", "LD_LIBRARY_PATH", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"),
    *("PATH", "PYTHONPATH", "TMPDIR", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
)
GRACE_S = 15.0
"""How long a child may take to end after each signal: nsys writes its report first."""

NCU_METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
_NSYS_PROFILE = (
    "--trace=cuda,nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",  # else a graph is one block
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop",  # else the application is ended with the capture
    "--discard-environment=true",  # else the report keeps all of it
    "--force-overwrite=true",
)
_NSYS_EXPORT = ("--type=sqlite", "--lazy=false", "--force-overwrite=true")
_NCU = (
    "--graph-profiling=node",
    "--cache-control=none",  # else caches are flushed before every kernel
    "--clock-control=none",  # else clocks are locked below what a server has
    "--force-overwrite",
)
_VERSION = re.compile(r"version\s+(\S+)", re.IGNORECASE)

LOG = "log.txt"
_ENDED_BY_NSYS = 143  # 128 + SIGTERM: nsys ends the program with its capture
_SHOWN_LINES = 5
_NO_COUNTERS = "ERR_NVGPUCTRPERM"
_ALLOW_COUNTERS = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
    "sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)


def _seen() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}


def run_child(command: Sequence[str], log: Path, timeout_s: float) -> int:
    """Run a command, its output in ``log``; its exit code. Raises ``ProfileError``."""
    with log.open("ab") as output:
        try:
            child = Child(command, stdout=output, stderr=output, env=with_package(_seen()))
        except OSError as error:
            raise ProfileError(f"{command[0]} cannot be started: {error.strerror}.") from None
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProfileError(
                f"{Path(command[0]).name} did not end within {timeout_s:g} s and was ended."
            ) from None
        finally:
            _end(child)


def ask(command: Sequence[str], timeout_s: float = 60.0) -> str:
    """What a command prints, on both streams; empty where it cannot be run."""
    try:
        return run_bounded(command, _seen(), timeout_s, stderr=subprocess.STDOUT)[1]
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _end(child: Child) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(subprocess.TimeoutExpired):
            child.signal(number)
            child.wait(GRACE_S)
            return
    child.kill()


@dataclass(frozen=True)
class Command:
    """A command line."""

    words: list[str]  # the program and its arguments
    dropped: list[str]  # options that the installed version does not know


PACKAGES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/bin",
        "/opt/nvidia/nsight-systems-cli/*/bin",
        "/usr/local/cuda*/bin",
    ),
    "ncu": (
        "/opt/nvidia/nsight-compute/*",
        "/usr/local/cuda*/nsight-compute-*",
        "/usr/local/cuda*/bin",
    ),
}
"""Where NVIDIA's packages and images put a profiler."""


def find_profiler(name: str) -> str | None:
    """Path of nsys or ncu: on ``PATH``, else the newest where NVIDIA's packages put it."""
    folders = [str(folder) for each in _PLACES[name] for folder in Path("/").glob(each[1:])]
    folders.sort(key=lambda folder: list(map(int, re.findall(r"\d+", folder))), reverse=True)
    programs = (find_program(each) for each in (name, *(f"{f}/{name}" for f in folders)))
    return next(filter(None, programs), None)


def require_tool(name: str) -> str:
    """Path of a profiler; ``ProfileError`` where it is not installed."""
    found = find_profiler(name)
    if found is None:
        raise ProfileError(
            f"{name} is not on PATH, nor where NVIDIA's packages put it: give --{name} PATH, "
            f"install NVIDIA {PACKAGES[name]} (it comes with the CUDA toolkit, or alone from "
            "NVIDIA), or profile with --torch."
        )
    return found


def version_of(tool: str) -> str | None:
    """Version that a profiler says it has."""
    found = _VERSION.search(ask([tool, "--version"]))
    return found[1] if found else None


def nsys_profile(nsys: str, output: Path, program: Sequence[str]) -> Command:
    """``nsys profile`` of a program, into ``output`` with ``.nsys-rep`` after."""
    return known_options([nsys, "profile"], _NSYS_PROFILE, [f"--output={output}", *program])


def ncu_profile(ncu: str, output: Path, program: Sequence[str], kernels: str | None) -> Command:
    """``ncu`` of the kernels of a program's steps, into ``output`` with ``.ncu-rep`` after.

    ``kernels`` is a regular expression of names.
    """
    chosen = [f"--kernel-name=regex:{kernels}"] if kernels else []
    more = ["--nvtx", f"--nvtx-include={STEP}/", *chosen, f"--metrics={','.join(NCU_METRICS)}"]
    return known_options([ncu], _NCU, [*more, f"--export={output}", *program])


def known_options(tool: list[str], options: Sequence[str], rest: Sequence[str]) -> Command:
    """With the options that the tool's help lists; all are known where there is no help."""
    listed = set(re.findall(r"--[a-z][a-z-]*", ask([*tool, "--help"])))
    known = [one for one in options if not listed or one.partition("=")[0] in listed]
    dropped = [one for one in options if one not in known]
    return Command([*tool, *known, *rest], dropped)


@dataclass(frozen=True)
class Profiled:
    """Files of a profiler."""

    file: Path  # the file to read
    files: list[Path]
    notes: list[str]  # options that it did not know


def run_profiler(command: Command, report: Path, timeout_s: float) -> Profiled:
    """Profile with nsys, and export its report, or with ncu; raises ``ProfileError``."""
    tool, log = "ncu" if report.suffix == ".ncu-rep" else "nsys", report.with_name(LOG)
    try:
        code = run_child(command.words, log, timeout_s)
        if _NO_COUNTERS in log.read_text(errors="replace"):
            raise ProfileError(
                f"ncu may not read the GPU's counters ({_NO_COUNTERS}): run as root, or "
                f"`{_ALLOW_COUNTERS}` and reboot; in a container add --cap-add=SYS_ADMIN."
            )
        if code and (tool, code) != ("nsys", _ENDED_BY_NSYS):
            raise ProfileError(f"{tool} ended with exit code {code}: {_last_lines(log)}")
        if not report.is_file():
            why = ", so no kernel was chosen" if tool == "ncu" else ""
            raise ProfileError(f"{tool} wrote no report {report.name}{why}: {_last_lines(log)}")
        if tool == "ncu":
            return Profiled(report, [report], _warnings(command.dropped, tool))
        database = report.with_suffix(".sqlite")
        return export_nsys(command.words[0], report, database, timeout_s, command.dropped)
    except ProfileError as error:
        raise ProfileError(f"{error} {name_files(report.parent)}") from None


def export_nsys(
    nsys: str, report: Path, database: Path, timeout_s: float, dropped: Sequence[str] = ()
) -> Profiled:
    """Export a report into a database; ``ProfileError`` where that fails or hangs."""
    words, log = [f"--output={database}", str(report)], database.with_name(LOG)
    export = known_options([nsys, "export"], _NSYS_EXPORT, words)
    code = run_child(export.words, log, timeout_s)
    if code or not database.is_file():
        raise ProfileError(
            f"nsys cannot export {report} (exit code {code}): {_last_lines(log)} If the report is "
            "of a newer nsys, export it with that one."
        )
    return Profiled(database, [report, database], _warnings([*dropped, *export.dropped], "nsys"))


def name_files(folder: Path) -> str:
    """A sentence that names what is in a folder."""
    left = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    return f"Files left: {', '.join(left)}." if left else "No file is left."


def _warnings(dropped: Sequence[str], tool: str) -> list[str]:
    names = ", ".join(dict.fromkeys(dropped))
    return [f"this {tool} does not know {names}: omitted"] if names else []


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    last = " | ".join(line for line in lines[-_SHOWN_LINES:] if line)
    return f"it says: {last}." if last else "it says nothing."
