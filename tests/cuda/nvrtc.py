"""Several versions of NVRTC in one process: torch's, and those of tests/compilers.

What the compiler makes of the kernels depends on its version, and a machine with a GPU brings
its own. ``cuda-bindings`` loads one NVRTC a process, so others are called through ``ctypes``.
"""

import ctypes
import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from dsv4kv.cli import app
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda import compile as compiling

COMPILERS = Path(__file__).resolve().parents[2] / "build" / "compilers"
VERSIONS = ("13.0", "13.5")
"""Folders of tests/compilers, whose packages ``make`` installs there; the newest shows code."""


@pytest.fixture
def nvrtc(request: pytest.FixtureRequest) -> Iterator[str]:
    """For a test marked ``with_each_nvrtc``: the version that everything compiles with."""
    with compiling_with(request.param):
        yield request.param


with_each_nvrtc = pytest.mark.parametrize("nvrtc", VERSIONS, indirect=True)


@contextmanager
def compiling_with(version: str) -> Iterator[None]:
    """Everything compiles with that NVRTC; skips where it is not installed.

    ``load_cubins`` keeps what it compiles from run to run.
    """
    functions = SimpleNamespace(**_functions(_library(version)))
    kept = Path(tempfile.gettempdir()) / f"dsv4kv-test-cubins-{os.getuid()}"
    with (
        patch.object(compiling, "_nvrtc", lambda: functions),
        patch.object(sys, "path", [str(COMPILERS / VERSIONS[-1]), *sys.path]),  # disassemblers
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
    """That NVRTC; torch's is loaded first, for whoever asks by the bare name later."""
    folder = COMPILERS / version / "nvidia" / "cu13" / "lib"
    if not folder.is_dir():
        pytest.skip(f"NVRTC {version} is not in {folder}: make build/compilers/installed")
    with suppress(CudaUnavailable):
        compiling.nvrtc_version()
    ctypes.CDLL(str(*folder.glob("libnvrtc-builtins.so.*")))  # the other asks by the bare name
    return ctypes.CDLL(str(folder / "libnvrtc.so.13"))


def main() -> None:
    """``python -m tests.cuda.nvrtc kernels …``: run ``dsv4kv`` with each of the versions."""
    for version in VERSIONS:
        with compiling_with(version):
            app(sys.argv[1:], standalone_mode=False)


if __name__ == "__main__":
    main()
