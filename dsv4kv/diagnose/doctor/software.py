"""Packages: what the toolkit needs, what kernels need, and those of others."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from dsv4kv.diagnose.doctor.machine import Check, check_folder
from dsv4kv.errors import CudaUnavailable, DeviceError

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
