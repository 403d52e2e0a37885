"""Where a run took place: machine, software, and the settings that change its speed.

Every fact that cannot be had is None; nothing here fails, imports torch, or names the machine.
"""

import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from dsv4kv.processes import run_bounded, usable_cores, version_of

SPEED_VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "MALLOC_ARENA_MAX", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip

T = TypeVar("T")

_SOURCE_TREE = Path(__file__).resolve().parents[2]
_CPUINFO = Path("/proc/cpuinfo")  # names of CPUs, which psutil does not have
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_COMMAND_TIMEOUT_S = 5.0


def capture_environment() -> dict[str, Any]:
    """Facts by the field names of ``dsv4kv.runs.schema.Environment``."""
    git_sha, git_dirty = _git_state(_SOURCE_TREE)
    return {
        "hostname_sha256": hashlib.sha256(socket.gethostname().encode()).hexdigest(),
        "platform": _platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cpu_count": usable_cores(),
        "memory_bytes": _known(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "load_1min": _known(lambda: os.getloadavg()[0]),
        "governor": (_known(_GOVERNOR.read_text) or "").strip() or None,
        "versions": {name: version_of(name) for name in ("dsv4kv", "torch", "numpy")}
        | _driver_versions(),
        "variables": {k: os.environ[k] for k in SPEED_VARIABLES if k in os.environ},
        "git_sha": git_sha,
        "git_dirty": git_dirty,
    }


def _platform() -> str:
    """What ``platform.platform()`` says on Linux; it also runs a ``uname`` found on PATH."""
    found = os.uname()
    libc = "".join(platform.libc_ver())
    return f"{found.sysname}-{found.release}-{found.machine}{f'-with-{libc}' if libc else ''}"


def _cpu_model() -> str | None:
    if platform.system() == "Darwin":
        return _output_of("sysctl", "-n", "machdep.cpu.brand_string") or None
    lines = (_known(lambda: _CPUINFO.read_text(errors="replace")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None  # ARM kernels name no model


def _known(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (ValueError, OSError):
        return None


def _driver_versions() -> dict[str, str | None]:
    """CUDA version the driver supports, and the driver's own; None without a driver."""
    try:
        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        driver = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return {"cuda": None, "driver": None}
    return {"cuda": f"{cuda // 1000}.{cuda % 1000 // 10}", "driver": str(driver)}


def _git_state(tree: Path) -> tuple[str | None, bool | None]:
    """Revision and dirtiness of ``tree``; None unless it is itself the top of a work tree."""
    if not (tree / ".git").exists():
        return None, None
    git = ("git", "--no-optional-locks", "-C", str(tree))
    sha = _output_of(*git, "rev-parse", "--verify", "HEAD")
    changes = _output_of(*git, "status", "--porcelain")
    return sha, None if sha is None or changes is None else bool(changes)


def _output_of(*command: str) -> str | None:
    """Standard output of a command, or None if it is absent, slow or fails."""
    # Inside a git hook, GIT_DIR would point git at another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        code, printed = run_bounded(command, environment, _COMMAND_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if code else printed.strip()
