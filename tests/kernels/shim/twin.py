"""Builds the CPU twin of a kernel module and runs launch plans on it."""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from torch import Tensor

from dsv4kv.ops.kernels.launch import KernelModule, Launch
from dsv4kv.resources import shipped

_FLAGS = ("-std=c++17", "-O2", "-fno-strict-aliasing", "-ffp-contract=off", "-fopenmp", "-fPIC")
_QUIET = ("-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function")
_SHIM = Path(__file__).with_name("shim.h")


def run(launch: Launch, *, reverse: bool = False) -> None:
    """Run a launch on the CPU; with ``reverse`` blocks and threads take their turns backwards."""
    library = _load(launch.module)
    kernel = ctypes.cast(getattr(library, launch.kernel), ctypes.c_void_p)
    words = [a.data_ptr() if isinstance(a, Tensor) else a for a in launch.arguments]
    arguments = (ctypes.c_long * len(words))(*words)
    library.dsv_shim_run(kernel, *launch.grid, launch.block, arguments, len(words), int(reverse))


def build(module: KernelModule, *extra: str) -> Path:
    """Compile a module to a shared library, once per content, and return its path."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the CPU twin of the kernels cannot be built")
    sources = sorted(shipped("kernels").glob("*.cuh"))
    digest = hashlib.sha256(repr((module, extra, _FLAGS)).encode())
    for source in [*sources, _SHIM]:
        digest.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / "dsv4kv-shim"
    folder.mkdir(exist_ok=True)
    target = folder / f"{Path(module.source).stem}-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    defines = [f"-D{name}={value}" for name, value in module.macros]
    unfinished = target.with_suffix(f".{id(module)}.tmp")
    command = [compiler, *_FLAGS, *_QUIET, *extra, "-DDSV_SHIM", *defines, "-shared"]
    command += ["-include", str(_SHIM), "-x", "c++", str(shipped("kernels") / module.source)]
    done = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unfinished.replace(target)
    return target


@functools.cache
def _load(module: KernelModule) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(module)))
