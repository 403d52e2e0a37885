"""Several versions of NVRTC in one process: the one installed, and others beside it.

What the compiler makes of the kernels depends on its version, and a machine with a GPU brings
its own. ``cuda-bindings`` loads one NVRTC a process, so others are called through ``ctypes``.
"""

import ctypes
import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from dsv4kv.cli import app
from dsv4kv.ops.cuda import compile as compiling

VERSIONS = ("13.0.88", "13.5.37")
"""What comes with torch 2.11 for CUDA 13, and what made most of the baseline."""

_LIBRARIES = "nvidia/cu13/lib"


@pytest.fixture
def nvrtc(request: pytest.FixtureRequest) -> Iterator[str]:
    """For a test marked ``with_each_nvrtc``: the version that everything compiles with."""
    with compiling_with(request.param):
        yield request.param


with_each_nvrtc = pytest.mark.parametrize("nvrtc", VERSIONS, indirect=True)


@contextmanager
def compiling_with(version: str) -> Iterator[None]:
    """Everything compiles with that NVRTC; skips where it is not here and cannot be had.

    ``load_cubins`` keeps what it compiles from run to run.
    """
    functions = SimpleNamespace(**_functions(_library(version)))
    kept = Path(tempfile.gettempdir()) / f"dsv4kv-test-cubins-{os.getuid()}"
    with (
        patch.object(compiling, "_nvrtc", lambda: functions),
        patch.dict(os.environ, DSV4KV_CACHE_DIR=str(kept)),
    ):
        compiling.nvrtc_version.cache_clear()
        try:
            yield
        finally:
            compiling.nvrtc_version.cache_clear()


class _Result(IntEnum):
    NVRTC_SUCCESS = 0


def _functions(library: ctypes.CDLL) -> dict[str, Any]:
    """What ``compile`` calls, as ``cuda.bindings.nvrtc`` has it."""

    def version() -> tuple[int, int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        status = library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return status, major.value, minor.value

    def architectures() -> tuple[int, list[int]]:
        count = ctypes.c_int()
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        return library.nvrtcGetSupportedArchs(known), list(known)

    def create(
        source: bytes, name: bytes, _count: int, _headers: object, _names: object
    ) -> tuple[int, ctypes.c_void_p]:
        program = ctypes.c_void_p()
        address = ctypes.byref(program)
        return library.nvrtcCreateProgram(address, source, name, 0, None, None), program

    def compile_(program: ctypes.c_void_p, count: int, options: Sequence[bytes]) -> tuple[int]:
        return (library.nvrtcCompileProgram(program, count, (ctypes.c_char_p * count)(*options)),)

    def size(function: str, program: ctypes.c_void_p) -> tuple[int, int]:
        found = ctypes.c_size_t()
        return getattr(library, function)(program, ctypes.byref(found)), found.value

    def content(function: str, program: ctypes.c_void_p, room: bytearray) -> tuple[int]:
        place = (ctypes.c_char * len(room)).from_buffer(room)
        return (getattr(library, function)(program, place),)

    def destroy(program: ctypes.c_void_p) -> tuple[int]:
        return (library.nvrtcDestroyProgram(ctypes.byref(program)),)

    return {
        "nvrtcResult": _Result,
        "nvrtcVersion": version,
        "nvrtcGetSupportedArchs": architectures,
        "nvrtcCreateProgram": create,
        "nvrtcCompileProgram": compile_,
        "nvrtcGetCUBINSize": functools.partial(size, "nvrtcGetCUBINSize"),
        "nvrtcGetCUBIN": functools.partial(content, "nvrtcGetCUBIN"),
        "nvrtcGetProgramLogSize": functools.partial(size, "nvrtcGetProgramLogSize"),
        "nvrtcGetProgramLog": functools.partial(content, "nvrtcGetProgramLog"),
        "nvrtcDestroyProgram": destroy,
    }


def _library(version: str) -> ctypes.CDLL:
    """That NVRTC; the installed one is loaded first, for whoever asks by the bare name later."""
    if installed := _installed():
        _load(installed[1])
    if installed and installed[0] == version:
        return _load(installed[1])
    return _load(_folder_of(version) / _LIBRARIES)


@functools.cache
def _load(folder: Path) -> ctypes.CDLL:
    ctypes.CDLL(str(*folder.glob("libnvrtc-builtins.so.*")))  # the other asks by the bare name
    return ctypes.CDLL(str(folder / "libnvrtc.so.13"))


def _installed() -> tuple[str, Path] | None:
    """Version and folder of the package that is installed here."""
    try:
        package = metadata.distribution("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return None
    return package.version, Path(str(package.locate_file(_LIBRARIES)))


def _folder_of(version: str) -> Path:
    """A folder of its own with that version, filled once a machine; skips where it cannot be."""
    home = Path(tempfile.gettempdir()) / f"dsv4kv-nvrtc-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / version
    with (home / f"{version}.lock").open("w") as lock:  # once for all workers too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(version, folder)
    return folder


def _install(version: str, folder: Path) -> None:
    unfinished = folder.with_suffix(".tmp")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--retries=0"]
    command += ["--only-binary=:all:", "--upgrade", f"--target={unfinished}"]
    package = f"nvidia-cuda-nvrtc=={version}"
    done = subprocess.run([*command, package], capture_output=True, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["pip failed"]
        pytest.skip(f"{package} cannot be installed: {told[-1]}")
    unfinished.replace(folder)


def main() -> None:
    """``python -m tests.cuda.nvrtc kernels …``: run ``dsv4kv`` with each of the versions."""
    for version in VERSIONS:
        with compiling_with(version):
            app(sys.argv[1:], standalone_mode=False)


if __name__ == "__main__":
    main()
