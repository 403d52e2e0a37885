"""Check a machine: parts found, their use, and how to get missing ones."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import psutil

from dsv4kv import files
from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.runs.environment import capture_environment
from dsv4kv.units import format_bytes

Status = Literal["good", "note", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """A finding about this machine."""

    topic: str  # ``machine``, ``software``, ``GPU`` or ``profilers``
    name: str  # what was looked at
    status: Status  # ``missing`` leaves something out, ``broken`` something that bench needs
    found: str  # what is there
    enables: str  # what it is for
    advice: str | None = None  # what to do; None where nothing is to be done


def examine() -> Iterator[Check]:
    """Look at this machine."""
    environment = capture_environment()
    yield from check_machine(environment)
    yield from check_software()
    yield from check_gpu(environment["versions"])
    has_gpu = environment["versions"]["driver"] is not None
    yield from check_profilers(has_gpu=has_gpu)


_NEEDED_BYTES = 1 << 30  # torch, two buffers of 256 MiB for memcpy, and the default cache
_LEAST_DISK_BYTES = 100 << 20
_QUIET_LOAD = 0.25  # per CPU
_FAST_GOVERNORS = ("performance", "schedutil")  # the latter follows the load within a window


def check_machine(environment: dict[str, Any], results: Path = Path("results")) -> Iterator[Check]:
    """Check the host, as ``capture_environment`` found it, and where records will go."""
    machine, count, load = "machine", environment["cpu_count"], environment["load_1min"]
    found = f"{environment['cpu'] or 'model unknown'}, {count or '?'} to use"
    yield Check(machine, "CPU", "good", found, "the CPU backend")

    busy = load is not None and count is not None and load > _QUIET_LOAD * count
    found = "not available" if load is None else f"{load:.1f}"
    advice = "other processes run: stop them, or measure later; more launches help a little."
    status: Status = "note" if load is None or busy else "good"
    enables = "timings without interference"
    yield Check(machine, "load", status, found, enables, advice if busy else None)

    governor = environment["governor"]
    status = "good" if governor in _FAST_GOVERNORS else "note"
    slow = governor and status == "note"
    advice = "sudo cpupower frequency-set --governor performance"
    found = governor or "not available (as in most virtual machines)"
    enables = "a CPU clock that does not fall between steps"
    yield Check(machine, "governor", status, found, enables, advice if slow else None)

    available = None
    with suppress(OSError, RuntimeError, ValueError):  # a container without /proc/meminfo
        available = int(psutil.virtual_memory().available)
    sizes = ((environment["memory_bytes"], "in all"), (available, "available"))
    found = ", ".join(f"{format_bytes(size)} {word}" for size, word in sizes if size is not None)
    short = available is not None and available < _NEEDED_BYTES
    status = "broken" if short else "good" if found else "note"
    advice = f"the default needs about {format_bytes(_NEEDED_BYTES)}: end other programs."
    found, enables = found or "not available", "caches with real data"
    yield Check(machine, "memory", status, found, enables, advice if short else None)

    spare = Path(tempfile.gettempdir())
    advice = f"name another with --out; until then records go to {spare}."
    check = check_folder(machine, "results", results, "run records", advice)
    if check.status == "missing" and check_folder("", "", spare, "", "").status == "missing":
        advice = "free some space, or name a folder with --out."
        found = f"neither {results} nor {spare} takes files"
        check = replace(check, status="broken", found=found, advice=advice)
    yield check


def check_folder(topic: str, name: str, folder: Path, enables: str, advice: str) -> Check:
    """Whether files can be kept in a folder, or in the one that it will be made in."""
    try:
        free = shutil.disk_usage(files.check_folder(folder)).free
    except OSError:
        return Check(topic, name, "missing", f"{folder} cannot be written", enables, advice)
    found = f"{folder}, {format_bytes(free)} free"
    if free < _LEAST_DISK_BYTES:
        return Check(topic, name, "missing", found, enables, "free some space.")
    return Check(topic, name, "good", found, enables)


_NEEDED = {"torch": "everything that moves bytes", "numpy": "bookkeeping and statistics"}


def check_software() -> Iterator[Check]:
    """Check what is imported, compiled with, and looked at."""
    from dsv4kv.core import COMPILED

    has_torch = True
    for name, enables in _NEEDED.items():
        try:
            version = str(import_module(name).__version__)
            yield Check("software", name, "good", version, enables)
        except Exception as error:
            has_torch &= name != "torch"
            advice = f"install it again: pip install --force-reinstall {name}"
            found = f"cannot be imported ({type(error).__name__}: {error})"
            yield Check("software", name, "broken", found, enables, advice)
    enables = "replays, plans and hit rates by an engine's rule"
    advice = "2 to 3 times as fast compiled: install a wheel, or run `make core` in a checkout."
    found, said = ("compiled", None) if COMPILED else ("interpreted", advice)
    yield Check("software", "core", "good", found, enables, said)
    if not has_torch:
        return  # nothing is known of kernels without it
    from dsv4kv.ops.cuda import compile as compiling
    from dsv4kv.ops.cuda import inspection

    enables = "compiling kernels, without a GPU too"
    try:
        yield Check("software", "NVRTC", "good", compiling.nvrtc_version(), enables)
    except (DeviceError, ImportError) as error:
        advice = "pip install 'dsv4kv[cuda]'"
        yield Check("software", "NVRTC", "missing", str(error), enables, advice)
    advice = "name a folder that can be with DSV4KV_CACHE_DIR."
    folder, enables = compiling.cache_folder(), "kernels that are compiled once"
    yield check_folder("software", "kernel cache", folder, enables, advice)
    enables = "dsv4kv kernels: what kernels compile to"
    try:
        place = str(inspection.find_disassembler())
        yield Check("software", "nvdisasm", "good", place, enables)
    except (CudaUnavailable, ImportError):
        advice = "pip install nvidia-cuda-nvdisasm"
        yield Check("software", "nvdisasm", "missing", "not installed", enables, advice)


_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_OWN_STATUS = Path("/proc/self/status")  # capabilities, which psutil does not have
_MAY_PROFILE = (21, 38)  # CAP_SYS_ADMIN, CAP_PERFMON
_CUDA_WHEELS = "https://download.pytorch.org/whl/"
_PROFILERS = {
    "nsys": "profile --nsys: kernels on a timeline",
    "ncu": "profile --ncu: DRAM bytes of every kernel",
}


def check_gpu(versions: dict[str, str | None]) -> Iterator[Check]:
    """Check what GPU runs need; ``versions`` come from ``capture_environment``."""
    driver, cuda = versions["driver"], versions["cuda"]
    enables = "GPU runs and their telemetry"
    if driver is None:
        advice = "on a machine with an NVIDIA GPU: install its driver. Else the CPU backend runs."
        yield Check("GPU", "driver", "missing", "none that answers", enables, advice)
    else:
        yield Check("GPU", "driver", "good", f"{driver}, for CUDA up to {cuda}", enables)
    yield _check_torch(driver, cuda)
    if driver is not None:
        yield _check_counters()


def check_profilers(*, has_gpu: bool) -> Iterator[Check]:
    """Check for nsys and ncu, which say little without a GPU."""
    from dsv4kv.profile.launch import PACKAGES, find_profiler, version_of

    for name, enables in _PROFILERS.items():
        path = find_profiler(name)
        if path is None:
            advice = f"install NVIDIA {PACKAGES[name]}; without it: profile --torch"
            lacks = Check("profilers", name, "missing", "not installed", enables)
            yield replace(lacks, advice=advice) if has_gpu else lacks
        else:
            version = version_of(path) or "version unknown"
            yield Check("profilers", name, "good", f"{version}, {path}", enables)


def _check_torch(driver: str | None, cuda: str | None) -> Check:
    lacking = Check("GPU", "GPU", "missing", "none", "bench --device cuda")
    try:
        import torch

        from dsv4kv.ops.cuda.compile import OLDEST
    except Exception:  # reported where packages are
        return replace(lacking, found="torch cannot be imported")
    built = torch.version.cuda
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = f"{facts.name}, capability {facts.major}.{facts.minor}"
        found = f"{capability}, {format_bytes(facts.total_memory)}, torch for CUDA {built}"
        if 10 * facts.major + facts.minor < OLDEST:
            least = f"{OLDEST // 10}.{OLDEST % 10}"
            advice = f"kernels need capability {least}: run with --device cpu."
            return replace(lacking, status="broken", found=found, advice=advice)
        return replace(lacking, status="good", found=found)
    if driver is None:
        return lacking
    if built is None:
        advice = f"install a torch built for CUDA: pip install torch --index-url {_CUDA_WHEELS}…"
        found = f"torch {torch.__version__} is built without CUDA"
        return replace(lacking, found=found, advice=advice)
    found = f"torch is built for CUDA {built}, the driver is for {cuda}, and torch sees no GPU"
    advice = "update the driver, look at CUDA_VISIBLE_DEVICES, and at /dev/nvidia* in containers."
    return replace(lacking, found=found, advice=advice)


def _check_counters() -> Check:
    check = Check("GPU", "counters", "good", "for everybody", "profile --ncu")
    for_admins = _search(r"RmProfilingAdminOnly:\s*(\d)", _DRIVER_PARAMETERS)
    if for_admins is None:
        found = "the driver does not report who may read them"
        return replace(check, status="note", found=found)
    if for_admins == "0":
        return check
    capabilities = int(_search(r"CapEff:\s*([0-9a-f]+)", _OWN_STATUS) or "0", 16)
    if any(capabilities >> bit & 1 for bit in _MAY_PROFILE):
        return replace(check, found="for administrators, and this is one")
    advice = (
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (see NVIDIA's page "
        "ERR_NVGPUCTRPERM), or give the process CAP_SYS_ADMIN"
    )
    return replace(check, status="missing", found="for administrators only", advice=advice)


def _search(pattern: str, file: Path) -> str | None:
    with suppress(OSError):
        found = re.search(pattern, file.read_text())
        return found and found[1]
    return None
