"""Builds the CPU twin of a kernel module and runs launch plans on it."""

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from torch import Tensor

from dsv4kv.files import shipped
from dsv4kv.ops.launches import MAX_ARGUMENTS, KernelModule, Launch

_FLAGS = (
    "-std=c++17",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",  # each library has a runtime of its own
)
_STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function")
_OFTEN, _ONCE = "-O1", "-O2"  # a module is compiled for a few launches, what runs all of them once
_SHIM, _RUNTIME = (Path(__file__).with_name(name) for name in ("shim.h", "runtime.cc"))

# Sanitizers hide from the compiler what it needs to tell a real warning.
SANITIZED = ("-O0", "-g1", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
"""Flags that make an access out of range or undefined arithmetic end the process."""


def run(
    launch: Launch, *, reverse: bool = False, seed: int = 0, flags: tuple[str, ...] = ()
) -> None:
    """Run a launch on the CPU.

    Blocks and threads take their turns as they are numbered, with ``reverse`` backwards, with a
    ``seed`` of 2 or more in a random order.
    """
    assert len(launch.arguments) <= MAX_ARGUMENTS
    library = _load(launch.module, flags)
    kernel = ctypes.cast(getattr(library, launch.kernel), ctypes.c_void_p)
    words = [_word(argument) for argument in launch.arguments]
    arguments = (ctypes.c_long * len(words))(*words)
    together = launch.cluster, launch.shared_bytes
    order = seed or int(reverse)
    library.dsv_shim_run(
        kernel, *launch.grid, launch.block, *together, arguments, len(words), order
    )


def build(module: KernelModule, *flags: str) -> Path:
    """Compile a module to a shared library, once per content, and return its path.

    The module's source may also be an absolute path, of a kernel that only a test has.
    """
    kernels = shipped("kernels")
    source = kernels / module.source
    defines = [f"-D{name}={value}" for name, value in module.macros]
    options = [_OFTEN, *flags, *defines, "-shared", "-I", str(kernels), "-include", str(_SHIM)]
    inputs = ["-x", "c++", str(source), "-x", "none", str(_runtime(flags))]
    found = {folder: sorted(folder.glob("*.cuh")) for folder in (source.parent, kernels)}
    read = [source, *(file for files in found.values() for file in files), _SHIM, _RUNTIME]
    return _compiled(source.stem, ".so", [*options, *inputs], read)


def _runtime(flags: tuple[str, ...]) -> Path:
    """The object file that runs the blocks of every kernel with these flags."""
    return _compiled("runtime", ".o", [_ONCE, *flags, "-c", str(_RUNTIME)], [_SHIM, _RUNTIME])


def _compiled(stem: str, suffix: str, arguments: list[str], read: list[Path]) -> Path:
    """What g++ makes of arguments, once per them and the content of the files that it reads."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the CPU twin of the kernels cannot be built")
    command = [compiler, *_FLAGS, *_STRICT, "-DDSV_SHIM", *arguments]
    names = [each.rpartition("/")[2] for each in command]  # a copy of the tree builds nothing anew
    digest = hashlib.sha256(repr(names).encode())
    for file in read:
        digest.update(file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"dsv4kv-shim-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    target = folder / f"{stem}-{digest.hexdigest()[:16]}{suffix}"
    with target.with_suffix(".lock").open("w") as lock:  # once for all workers too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = target.with_suffix(f".{os.getpid()}.tmp")
            quiet = {**os.environ, "LD_PRELOAD": ""}  # the compiler itself need not be sanitized
            done = subprocess.run(
                [*command, "-o", str(unfinished)],
                env=quiet,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            unfinished.replace(target)
    return target


def _word(argument: Tensor | int) -> int:
    if isinstance(argument, int):
        return argument
    assert argument.is_contiguous()
    return argument.data_ptr()


@functools.cache
def _load(module: KernelModule, flags: tuple[str, ...]) -> ctypes.CDLL:
    return ctypes.CDLL(str(build(module, *flags)))
