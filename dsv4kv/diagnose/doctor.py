"""What a machine has, what that makes possible, and what to do about what it lacks."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import psutil

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.measure.environment import capture_environment
from dsv4kv.processes import find_program
from dsv4kv.units import format_bytes, format_duration

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4kv.bench.device import CudaDevice


Status = Literal["good", "note", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """A finding about this machine."""

    topic: str
    """What it belongs to: ``machine``, ``software``, ``GPU``, ``profilers``, ``peers`` or
    ``timers``."""
    name: str  # what was looked at
    status: Status
    """``missing`` leaves something out, ``broken`` something that `dsv4kv bench` needs."""
    found: str  # what is there
    enables: str  # what it is for
    advice: str | None = None  # what to do; None where nothing is to be done


_WIDE = 0.05  # compare is to find changes of a few per cent


def examine(calibration: Path) -> Iterator[Check]:
    """Look at this machine; ``calibration`` is the file that a calibration leaves."""
    environment = capture_environment()
    yield from check_machine(environment)
    yield _check_calibration(calibration, environment["hostname_sha256"])
    yield from check_software()
    yield from check_gpu(environment["versions"])
    has_gpu = environment["versions"]["driver"] is not None
    yield from check_profilers(has_gpu=has_gpu)
    yield from check_peers(has_gpu=has_gpu)
    yield from check_host_clocks()
    yield from _check_device_clock()


def _check_calibration(path: Path, hostname_sha256: str) -> Check:
    from dsv4kv.bench.compare.floor import read_noise_floors
    from dsv4kv.errors import ConfigError

    name, enables = "calibration", "compare: this machine's A/A noise floor"
    advice = "dsv4kv doctor --calibrate, while nothing else runs (minutes)"
    try:
        floors = read_noise_floors(path)
    except ConfigError as error:
        return Check("machine", name, "missing", str(error), enables, advice)
    if floors is None:
        return Check("machine", name, "missing", "none yet", enables, advice)
    if not floors.is_of(hostname_sha256):
        return Check("machine", name, "missing", "that of another machine", enables, advice)
    percent = floors.alone * 100
    if floors.alone > _WIDE:
        advice = f"a floor this wide hides changes. Again: {advice}"
        return Check("machine", name, "note", f"noise floor {percent:.0f} %", enables, advice)
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    return Check("machine", name, "good", f"noise floor {percent:.2f} %, {day}", enables)


def _check_device_clock() -> Iterator[Check]:
    try:
        from dsv4kv.bench.device import find_device
    except Exception:  # torch cannot be imported, which check_software reports
        return
    device = find_device("auto")
    if device is not None:
        try:
            yield check_device_clock(device)
        except RuntimeError as error:  # out of memory, or a driver in trouble
            first_line = str(error).partition("\n")[0]
            yield Check(
                "timers", "GPU events", "missing", first_line, "every time that is reported"
            )


_MACHINE = "machine"
_NEEDED_BYTES = 1 << 30  # torch, two buffers of 256 MiB for memcpy, and the default cache
_LEAST_DISK_BYTES = 100 << 20
_QUIET_LOAD = 0.25  # per CPU
_FAST_GOVERNORS = ("performance", "schedutil")  # the latter follows the load within a window


def check_machine(environment: dict[str, Any], results: Path = Path("results")) -> Iterator[Check]:
    """Check the host, as ``capture_environment`` found it, and where records will go."""
    count = environment["cpu_count"]
    detail = f"{environment['cpu'] or 'model unknown'}, {count or '?'} to use"
    yield Check(_MACHINE, "CPU", "good", detail, "the CPU backend")
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
        return Check(_MACHINE, "load", "note", "not available", enables)
    busy = count is not None and load > _QUIET_LOAD * count
    advice = "other processes run: stop them, or measure later; more launches help a little."
    status: Status = "note" if busy else "good"
    return Check(_MACHINE, "load", status, f"{load:.1f}", enables, advice if busy else None)


def _check_governor(governor: str | None) -> Check:
    enables = "a CPU clock that does not fall between steps"
    if governor is None:
        return Check(
            _MACHINE, "governor", "note", "not available (as in most virtual machines)", enables
        )
    if governor in _FAST_GOVERNORS:
        return Check(_MACHINE, "governor", "good", governor, enables)
    advice = "sudo cpupower frequency-set --governor performance"
    return Check(_MACHINE, "governor", "note", governor, enables, advice)


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
        return Check(_MACHINE, "memory", "broken", detail, enables, advice)
    return Check(_MACHINE, "memory", "good" if sizes else "note", detail, enables)


def _available_bytes() -> int | None:
    try:
        return int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, ValueError):  # a container without /proc/meminfo
        return None


def _check_results(folder: Path) -> Check:
    """Records go to the temporary folder where they cannot go where they should."""
    spare = Path(tempfile.gettempdir())
    advice = f"name another with --out; until then records go to {spare}."
    found = check_folder(_MACHINE, "results", folder, "run records", advice)
    if found.status == "missing":
        other = check_folder(_MACHINE, "results", spare, "run records", "")
        if other.status == "missing":
            detail = f"neither {folder} nor {spare} takes files"
            advice = "free some space, or name a folder with --out."
            return Check(_MACHINE, "results", "broken", detail, "run records", advice)
    return found


_CUDA_EXTRA = "pip install 'dsv4kv[cuda]'"
_NEEDED = {"torch": "everything that moves bytes", "numpy": "bookkeeping and statistics"}
_DISASSEMBLERS = ("cuobjdump", "nvdisasm")
_PEERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "flash_mla": None,
    "flag_gems": "flaggems",
}
"""Packages, and the backends that they are."""

_NOT_TIMED = "nothing to time: it has neither gather nor insert of its own"


def check_software() -> Iterator[Check]:
    """Check what is imported, compiled with, and looked at."""
    needed = [_check_needed(name, enables) for name, enables in _NEEDED.items()]
    yield from needed
    yield _check_core()
    if needed[0].status == "broken":
        return  # nothing is known of kernels without torch
    yield _check_nvrtc()
    yield _check_cubin_cache()
    for tool in _DISASSEMBLERS:
        yield _check_disassembler(tool)


def check_peers(*, has_gpu: bool) -> Iterator[Check]:
    """Packages of others; they are not imported, and without a GPU nobody needs them."""
    from dsv4kv.measure.environment import package_version

    for package, backend in _PEERS.items():
        enables = f"bench --backend {backend}" if backend else _NOT_TIMED
        if find_spec(package) is None:
            advice = f"to compare with it: pip install {package}" if has_gpu and backend else None
            yield Check("peers", package, "missing", "not installed", enables, advice)
        else:
            version = package_version(package) or "installed, version unknown"
            yield Check("peers", package, "good", version, enables)


def _check_needed(name: str, enables: str) -> Check:
    try:
        module = import_module(name)
    except Exception as error:
        advice = f"install it again: pip install --force-reinstall {name}"
        detail = f"cannot be imported ({type(error).__name__}: {error})"
        return Check("software", name, "broken", detail, enables, advice)
    return Check("software", name, "good", str(module.__version__), enables)


def _check_core() -> Check:
    from dsv4kv.core import COMPILED

    enables = "replays, plans and hit rates by an engine's rule"
    if COMPILED:
        return Check("software", "core", "good", "compiled", enables)
    advice = "2 to 3 times as fast compiled: install a wheel, or run `make core` in a checkout."
    return Check("software", "core", "good", "interpreted", enables, advice)


def _check_nvrtc() -> Check:
    enables = "compiling kernels, without a GPU too"
    try:
        from dsv4kv.ops.cuda.compile import nvrtc_version

        return Check("software", "NVRTC", "good", nvrtc_version(), enables)
    except (DeviceError, ImportError) as error:
        return Check("software", "NVRTC", "missing", str(error), enables, _CUDA_EXTRA)


def _check_cubin_cache() -> Check:
    from dsv4kv.ops.cuda.compile import cache_folder

    advice = "name a folder that can be with DSV4KV_CACHE_DIR."
    enables = "kernels that are compiled once"
    return check_folder("software", "kernel cache", cache_folder(), enables, advice)


def _check_disassembler(tool: str) -> Check:
    enables = "dsv4kv kernels: what kernels compile to"
    try:
        from dsv4kv.ops.cuda.inspection import find_tool

        return Check("software", tool, "good", str(find_tool(tool)), enables)
    except (CudaUnavailable, ImportError):
        advice = f"pip install nvidia-cuda-{tool}"
        return Check("software", tool, "missing", "not installed", enables, advice)


_GPU = "GPU"
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
    enables = "GPU runs and their telemetry"
    if driver is None:
        advice = "on a machine with an NVIDIA GPU: install its driver. Else the CPU backend runs."
        yield Check(_GPU, "driver", "missing", "none that answers", enables, advice)
    else:
        yield Check(_GPU, "driver", "good", f"{driver}, for CUDA up to {cuda}", enables)
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


def _check_torch(driver: str | None, cuda: str | None) -> Check:
    """Whether torch sees a GPU, and if not, whose fault that is."""
    name, enables = "GPU", "bench --device cuda"
    try:
        import torch
    except Exception:  # reported where packages are
        return Check(_GPU, name, "missing", "torch cannot be imported", enables)
    built = torch.version.cuda
    if torch.cuda.is_available():
        return _describe(torch.cuda.get_device_properties(torch.cuda.current_device()), built)
    if driver is None:
        return Check(_GPU, name, "missing", "none", enables)
    if built is None:
        advice = f"install a torch built for CUDA: pip install torch --index-url {_CUDA_WHEELS}…"
        detail = f"torch {torch.__version__} is built without CUDA"
        return Check(_GPU, name, "missing", detail, enables, advice)
    detail = f"torch is built for CUDA {built}, the driver is for {cuda}, and torch sees no GPU"
    advice = "update the driver, look at CUDA_VISIBLE_DEVICES, and at /dev/nvidia* in containers."
    return Check(_GPU, name, "missing", detail, enables, advice)


def _describe(facts: Any, built: str | None) -> Check:
    from dsv4kv.ops.cuda.compile import OLDEST

    detail = (
        f"{facts.name}, capability {facts.major}.{facts.minor}, "
        f"{format_bytes(facts.total_memory)}, torch for CUDA {built}"
    )
    if 10 * facts.major + facts.minor < OLDEST:
        advice = f"kernels need capability {OLDEST // 10}.{OLDEST % 10}: run with --device cpu."
        return Check(_GPU, "GPU", "broken", detail, "bench --device cuda", advice)
    return Check(_GPU, "GPU", "good", detail, "bench --device cuda")


def _check_counters() -> Check:
    """Whether this user may read performance counters, by what the driver was loaded with."""
    name, enables = "counters", "profile --ncu"
    try:
        for_admins = re.search(r"RmProfilingAdminOnly:\s*(\d)", _DRIVER_PARAMETERS.read_text())
    except OSError:
        for_admins = None
    if for_admins is None:
        return Check(_GPU, name, "note", "the driver does not report who may read them", enables)
    if for_admins[1] == "0":
        return Check(_GPU, name, "good", "for everybody", enables)
    if _is_admin():
        return Check(_GPU, name, "good", "for administrators, and this is one", enables)
    advice = (
        "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (see NVIDIA's page "
        "ERR_NVGPUCTRPERM), or give the process CAP_SYS_ADMIN"
    )
    return Check(_GPU, name, "missing", "for administrators only", enables, advice)


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
