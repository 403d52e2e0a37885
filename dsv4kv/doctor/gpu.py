"""The GPU: driver, torch, and who may read its counters."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsv4kv.doctor.check import Check
from dsv4kv.units import format_bytes

_TOPIC = "GPU"
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_OWN_STATUS = Path("/proc/self/status")
_MAY_PROFILE = (21, 38)  # CAP_SYS_ADMIN, CAP_PERFMON
_CUDA_WHEELS = "https://download.pytorch.org/whl/"
_PROFILERS = {
    "nsys": ("profile --nsys: kernels on a timeline", "NVIDIA Nsight Systems"),
    "ncu": ("profile --ncu: DRAM bytes of every kernel", "NVIDIA Nsight Compute"),
}


def check_gpu(versions: dict[str, str | None]) -> Iterator[Check]:
    """Check what runs need on a GPU; ``versions`` are those of the environment."""
    driver, cuda = versions["driver"], versions["cuda"]
    yield _check_driver(driver, cuda)
    yield _check_torch(driver, cuda)
    if driver is not None:
        yield _check_counters()


def check_profilers(*, has_gpu: bool) -> Iterator[Check]:
    """Check for nsys and ncu, which say little without a GPU."""
    from dsv4kv.measure.profilers.commands import find_tool, version_of

    for name, (enables, title) in _PROFILERS.items():
        path = find_tool(name)
        if path is None:
            advice = f"install {title} and put it on PATH; without it: profile --torch"
            lacking = Check("profilers", name, "missing", "not on PATH", enables, advice)
            yield lacking if has_gpu else replace(lacking, advice=None)
        else:
            version = version_of(path) or "version not told"
            yield Check("profilers", name, "good", f"{version}, {path}", enables)


def _check_driver(driver: str | None, cuda: str | None) -> Check:
    enables = "GPU runs and their telemetry"
    if driver is None:
        advice = "on a machine with an NVIDIA GPU: install its driver. Else the CPU backend runs."
        return Check(_TOPIC, "driver", "missing", "none that answers", enables, advice)
    return Check(_TOPIC, "driver", "good", f"{driver}, for CUDA up to {cuda}", enables)


def _check_torch(driver: str | None, cuda: str | None) -> Check:
    """Whether torch sees a GPU, and if not, whose fault that is."""
    name, enables = "GPU", "bench --device cuda"
    try:
        import torch
    except Exception:  # told where packages are
        return Check(_TOPIC, name, "missing", "torch cannot be imported", enables)
    built = torch.version.cuda
    if torch.cuda.is_available():
        return _describe(torch.cuda.get_device_properties(torch.cuda.current_device()), built)
    if driver is None:
        return Check(_TOPIC, name, "missing", "none", enables)
    if built is None:
        advice = f"install a torch built for CUDA: pip install torch --index-url {_CUDA_WHEELS}…"
        told = f"torch {torch.__version__} is built without CUDA"
        return Check(_TOPIC, name, "missing", told, enables, advice)
    told = f"torch is built for CUDA {built}, the driver is for {cuda}, and torch sees no GPU"
    advice = "update the driver, look at CUDA_VISIBLE_DEVICES, and at /dev/nvidia* in containers."
    return Check(_TOPIC, name, "missing", told, enables, advice)


def _describe(facts: Any, built: str | None) -> Check:
    from dsv4kv.ops.cuda.compile import OLDEST

    told = (
        f"{facts.name}, capability {facts.major}.{facts.minor}, "
        f"{format_bytes(facts.total_memory)}, torch for CUDA {built}"
    )
    if 10 * facts.major + facts.minor < OLDEST:
        advice = f"kernels need capability {OLDEST // 10}.{OLDEST % 10}: run with --device cpu."
        return Check(_TOPIC, "GPU", "broken", told, "bench --device cuda", advice)
    return Check(_TOPIC, "GPU", "good", told, "bench --device cuda")


def _check_counters() -> Check:
    """Whether this user may read performance counters, by what the driver was loaded with."""
    name, enables = "counters", "profile --ncu"
    try:
        for_admins = re.search(r"RmProfilingAdminOnly:\s*(\d)", _DRIVER_PARAMETERS.read_text())
    except OSError:
        for_admins = None
    if for_admins is None:
        return Check(_TOPIC, name, "note", "the driver does not tell who may read them", enables)
    if for_admins[1] == "0":
        return Check(_TOPIC, name, "good", "for everybody", enables)
    if _is_admin():
        return Check(_TOPIC, name, "good", "for administrators, and this is one", enables)
    advice = (
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (see NVIDIA's page "
        "ERR_NVGPUCTRPERM), or give the process CAP_SYS_ADMIN"
    )
    return Check(_TOPIC, name, "missing", "for administrators only", enables, advice)


def _is_admin() -> bool:
    try:
        effective = re.search(r"CapEff:\s*([0-9a-f]+)", _OWN_STATUS.read_text())
    except OSError:
        return False
    return effective is not None and any(int(effective[1], 16) >> bit & 1 for bit in _MAY_PROFILE)
