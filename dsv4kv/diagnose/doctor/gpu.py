"""The GPU: driver, torch, and who may read its counters."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from dsv4kv.diagnose.doctor.machine import Check, Status
from dsv4kv.processes import find_program
from dsv4kv.units import format_bytes, format_duration

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4kv.bench.device import CudaDevice

_TOPIC = "GPU"
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_OWN_STATUS = Path("/proc/self/status")  # capabilities, which psutil does not have
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
    from dsv4kv.measure.profilers.launch import version_of

    for name, (enables, title) in _PROFILERS.items():
        path = find_program(name)
        if path is None:
            advice = f"install {title} and put it on PATH; without it: profile --torch"
            lacking = Check("profilers", name, "missing", "not on PATH", enables, advice)
            yield lacking if has_gpu else replace(lacking, advice=None)
        else:
            version = version_of(path) or "version unknown"
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
    except Exception:  # reported where packages are
        return Check(_TOPIC, name, "missing", "torch cannot be imported", enables)
    built = torch.version.cuda
    if torch.cuda.is_available():
        return _describe(torch.cuda.get_device_properties(torch.cuda.current_device()), built)
    if driver is None:
        return Check(_TOPIC, name, "missing", "none", enables)
    if built is None:
        advice = f"install a torch built for CUDA: pip install torch --index-url {_CUDA_WHEELS}…"
        detail = f"torch {torch.__version__} is built without CUDA"
        return Check(_TOPIC, name, "missing", detail, enables, advice)
    detail = f"torch is built for CUDA {built}, the driver is for {cuda}, and torch sees no GPU"
    advice = "update the driver, look at CUDA_VISIBLE_DEVICES, and at /dev/nvidia* in containers."
    return Check(_TOPIC, name, "missing", detail, enables, advice)


def _describe(facts: Any, built: str | None) -> Check:
    from dsv4kv.ops.cuda.compile import OLDEST

    detail = (
        f"{facts.name}, capability {facts.major}.{facts.minor}, "
        f"{format_bytes(facts.total_memory)}, torch for CUDA {built}"
    )
    if 10 * facts.major + facts.minor < OLDEST:
        advice = f"kernels need capability {OLDEST // 10}.{OLDEST % 10}: run with --device cpu."
        return Check(_TOPIC, "GPU", "broken", detail, "bench --device cuda", advice)
    return Check(_TOPIC, "GPU", "good", detail, "bench --device cuda")


def _check_counters() -> Check:
    """Whether this user may read performance counters, by what the driver was loaded with."""
    name, enables = "counters", "profile --ncu"
    try:
        for_admins = re.search(r"RmProfilingAdminOnly:\s*(\d)", _DRIVER_PARAMETERS.read_text())
    except OSError:
        for_admins = None
    if for_admins is None:
        return Check(_TOPIC, name, "note", "the driver does not report who may read them", enables)
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


Clock = Callable[[], int]

_SPAN_S = 0.2
_HOST_WITHIN = 0.002  # time servers slew a wall clock by 0.05 % at most; the rest is scheduling
_GPU_WITHIN = 0.01  # launching and waking up, next to 100 ms of work
_LOOKS = 2_000


def check_host_clocks(
    clock_ns: Clock = time.perf_counter_ns,
    wall_ns: Clock = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Check]:
    """Hold the clock that times everything against the wall's, and report its resolution."""
    started, wall_started = clock_ns(), wall_ns()
    sleep(_SPAN_S)
    elapsed, wall_elapsed = clock_ns() - started, wall_ns() - wall_started
    advice = "the machine's clock was set during the check, or is not reliable: run this again."
    yield _compare("perf_counter", elapsed, "wall clock", wall_elapsed, _HOST_WITHIN, advice)
    looks = [clock_ns() for _ in range(_LOOKS)]
    steps = [after - before for before, after in pairwise(looks)]
    step_ns = min((step for step in steps if step), default=0)
    cost_ns = (looks[-1] - looks[0]) / len(steps)
    coarse = not step_ns or step_ns > 1_000
    detail = f"steps of {format_duration(step_ns)}, {format_duration(cost_ns)} a call"
    status: Status = "note" if coarse else "good"
    yield Check("timers", "resolution", status, detail, "operations of microseconds")


def compare_device_clock(device_ns: int, host_ns: int) -> Check:
    """Hold a GPU's events against the host's clock, over the same long work."""
    advice = "trust neither until they agree: update the driver, or stop what else uses the GPU."
    return _compare("GPU events", device_ns, "perf_counter", host_ns, _GPU_WITHIN, advice)


def _compare(
    name: str, elapsed_ns: int, other: str, other_ns: int, within: float, advice: str
) -> Check:
    apart = abs(elapsed_ns / other_ns - 1) if other_ns else 1.0
    detail = (
        f"{format_duration(elapsed_ns)} against {format_duration(other_ns)} of {other}: "
        f"{apart * 100:.3f} % apart"
    )
    agree = apart <= within
    return Check(
        "timers", name, "good" if agree else "note", detail, "every time that is reported",
        None if agree else advice,
    )  # fmt: skip


_BYTES = 1 << 28
_WORK_NS = 100_000_000


def check_device_clock(
    device: "CudaDevice", size_bytes: int = _BYTES, clock_ns: Clock = perf_counter_ns
) -> Check:
    """Copy for a tenth of a second, between two events and between two looks at the clock."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device=device.device)
    target = torch.empty_like(source)
    _time(device, source, target, 1, clock_ns)
    once_ns, _ = _time(device, source, target, 4, clock_ns)
    copies = max(4, min(10_000, round(4 * _WORK_NS / max(1, once_ns))))
    return compare_device_clock(*_time(device, source, target, copies, clock_ns))


def _time(
    device: "CudaDevice", source: "Tensor", target: "Tensor", copies: int, clock_ns: Clock
) -> tuple[int, int]:
    """Nanoseconds of so many copies by the events and by the clock."""
    start, end = device.make_event(), device.make_event()
    started_ns = clock_ns()
    start.record()
    for _ in range(copies):
        target.copy_(source)
    end.record()
    end.synchronize()
    elapsed_ns = clock_ns() - started_ns
    return round(start.elapsed_time(end) * 1e6), elapsed_ns
