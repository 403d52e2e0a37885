"""The host: processors, memory, folders, and who else is at work."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from dsv4kv.units import format_bytes

Status = Literal["good", "note", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """A finding about this machine.

    Attributes:
        topic: What it belongs to: ``machine``, ``software``, ``GPU``, ``profilers``, ``peers`` or
            ``timers``.
        name: What was looked at.
        status: ``missing`` leaves something out, ``broken`` something that `dsv4kv bench` needs.
        found: What is there.
        enables: What it is for.
        advice: What to do; None where nothing is to be done.
    """

    topic: str
    name: str
    status: Status
    found: str
    enables: str
    advice: str | None = None


_TOPIC = "machine"
_NEEDED_BYTES = 1 << 30  # torch, two buffers of 256 MiB for memcpy, and the default cache
_LEAST_DISK_BYTES = 100 << 20
_QUIET_LOAD = 0.25  # per CPU
_FAST_GOVERNORS = ("performance", "schedutil")  # the latter follows the load within a window


def check_machine(environment: dict[str, Any], results: Path = Path("results")) -> Iterator[Check]:
    """Check the host, as ``capture_environment`` found it, and where records will go."""
    count = environment["cpu_count"]
    detail = f"{environment['cpu'] or 'model unknown'}, {count or '?'} to use"
    yield Check(_TOPIC, "CPU", "good", detail, "the CPU backend")
    yield _check_load(environment["load_1min"], count)
    yield _check_governor(environment["governor"])
    yield _check_memory(environment["memory_bytes"])
    yield _check_results(results)


def check_folder(topic: str, name: str, folder: Path, enables: str, advice: str) -> Check:
    """Whether files can be kept in a folder, or in the one that it will be made in."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Check(topic, name, "missing", f"{folder} cannot be written", enables, advice)
    free = shutil.disk_usage(there).free
    detail = f"{folder}, {format_bytes(free)} free"
    if free < _LEAST_DISK_BYTES:
        return Check(topic, name, "missing", detail, enables, "free some space.")
    return Check(topic, name, "good", detail, enables)


def _check_load(load: float | None, count: int | None) -> Check:
    enables = "timings without interference"
    if load is None:
        return Check(_TOPIC, "load", "note", "not available", enables)
    busy = count is not None and load > _QUIET_LOAD * count
    advice = "other processes run: stop them, or measure later; more launches help a little."
    status: Status = "note" if busy else "good"
    return Check(_TOPIC, "load", status, f"{load:.1f}", enables, advice if busy else None)


def _check_governor(governor: str | None) -> Check:
    enables = "a CPU clock that does not fall between steps"
    if governor is None:
        return Check(
            _TOPIC, "governor", "note", "not available (as in most virtual machines)", enables
        )
    if governor in _FAST_GOVERNORS:
        return Check(_TOPIC, "governor", "good", governor, enables)
    advice = "sudo cpupower frequency-set --governor performance"
    return Check(_TOPIC, "governor", "note", governor, enables, advice)


def _check_memory(total_bytes: int | None) -> Check:
    available = _available_bytes()
    sizes = [
        f"{format_bytes(size)} {word}"
        for size, word in ((total_bytes, "in all"), (available, "available"))
        if size is not None
    ]
    detail, enables = ", ".join(sizes) or "not available", "caches with real data"
    if available is not None and available < _NEEDED_BYTES:
        advice = f"the default needs about {format_bytes(_NEEDED_BYTES)}: end other programs."
        return Check(_TOPIC, "memory", "broken", detail, enables, advice)
    return Check(_TOPIC, "memory", "good" if sizes else "note", detail, enables)


def _available_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, ValueError):  # a container without /proc/meminfo
        return None


def _check_results(folder: Path) -> Check:
    """Records go to the temporary folder where they cannot go where they should."""
    spare = Path(tempfile.gettempdir())
    advice = f"name another with --out; until then records go to {spare}."
    found = check_folder(_TOPIC, "results", folder, "run records", advice)
    if found.status == "missing":
        other = check_folder(_TOPIC, "results", spare, "run records", "")
        if other.status == "missing":
            detail = f"neither {folder} nor {spare} takes files"
            advice = "free some space, or name a folder with --out."
            return Check(_TOPIC, "results", "broken", detail, "run records", advice)
    return found
