"""Command lines of nsys and ncu, made of what the installed version knows."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.child import ask
from dsv4kv.measure.profilers.ranges import DOMAIN, STEP

NCU_METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
    "launch__registers_per_thread",
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


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        words: The program and its arguments.
        dropped: Options that the installed version does not know.
    """

    words: list[str]
    dropped: list[str]


def find_tool(name: str) -> str | None:
    """Path of a profiler on ``PATH``."""
    return shutil.which(name)


def require_tool(name: str, package: str) -> str:
    """Path of a profiler.

    Raises:
        ProfileError: It is not installed.
    """
    found = find_tool(name)
    if found is None:
        raise ProfileError(
            f"{name} is not on PATH: install NVIDIA {package} (it comes with the CUDA toolkit, or "
            "alone from NVIDIA), or profile with --torch."
        )
    return found


def version_of(tool: str) -> str | None:
    """Version that a profiler says it has."""
    found = _VERSION.search(ask([tool, "--version"]))
    return found[1] if found else None


def nsys_profile(nsys: str, output: Path, program: Sequence[str]) -> Command:
    """``nsys profile`` of a program, into ``output`` with ``.nsys-rep`` behind."""
    kept, dropped = _known(_NSYS_PROFILE, ask([nsys, "profile", "--help"]))
    return Command([nsys, "profile", *kept, f"--output={output}", *program], dropped)


def nsys_export(nsys: str, report: Path, database: Path) -> Command:
    """``nsys export`` of a report."""
    kept, dropped = _known(_NSYS_EXPORT, ask([nsys, "export", "--help"]))
    return Command([nsys, "export", *kept, f"--output={database}", str(report)], dropped)


def ncu_profile(
    ncu: str, output: Path, program: Sequence[str], kernels: str | None, *, own_domain: bool
) -> Command:
    """``ncu`` of the kernels of a program's steps, into ``output`` with ``.ncu-rep`` behind.

    ``kernels`` is a regular expression of names. Without a domain of their own (the ``nvtx``
    package is missing) steps are found by name alone.
    """
    kept, dropped = _known(_NCU, ask([ncu, "--help"]))
    steps = f"{DOMAIN}@{STEP}/" if own_domain else f"{STEP}/"
    chosen = [f"--kernel-name=regex:{kernels}"] if kernels else []
    metrics = f"--metrics={','.join(NCU_METRICS)}"
    options = ["--nvtx", f"--nvtx-include={steps}", *kept, *chosen, metrics]
    return Command([ncu, *options, f"--export={output}", *program], dropped)


def _known(options: Sequence[str], help_text: str) -> tuple[list[str], list[str]]:
    """Options that a help text lists, and the others; all where there is no help."""
    listed = set(re.findall(r"--[a-z][a-z-]*", help_text))
    known = [one for one in options if not listed or one.partition("=")[0] in listed]
    return known, [one for one in options if one not in known]
