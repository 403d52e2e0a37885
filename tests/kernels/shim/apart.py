"""Runs a test's function in a process of its own, where kernels may abort or be sanitized."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_NEXT = "\0"  # before what each call says


def run_apart(call: str, *, sanitized: bool) -> subprocess.CompletedProcess[str]:
    """Run ``module:function('argument')``, given as ``module`` and what to call after a colon."""
    module, _, function = call.partition(":")
    name = function.partition("(")[0]
    command = [sys.executable, "-c", f"from {module} import {name}\n{function}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(_asan() if sanitized else {})}
    return subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )


def run_each_apart(module: str, calls: Sequence[str]) -> list[tuple[int, str]]:
    """Run calls of a module's functions, each on its own; exit code and what it said on stderr.

    They are forks of one process, which has imported everything and used no OpenMP yet.
    """
    done = run_apart(
        f"tests.kernels.shim.apart:_fork_each({module!r}, {calls!r})", sanitized=False
    )
    assert done.returncode == 0, done.stderr
    codes, said = done.stdout.split(), done.stderr.split(_NEXT)[1:]
    return list(zip(map(int, codes), said, strict=True))


def _fork_each(module: str, calls: Sequence[str]) -> None:
    functions = vars(importlib.import_module(module))
    for call in calls:
        print(_NEXT, end="", file=sys.stderr, flush=True)
        if child := os.fork():
            print(os.waitpid(child, 0)[1], flush=True)
            continue
        try:
            eval(call, functions)
        except AssertionError as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)


def _asan() -> dict[str, str]:
    """A sanitized library needs the sanitizer to be the first one in the process."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: the CPU twin of the kernels cannot be built")
    command = [compiler, "-print-file-name=libasan.so"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("g++ has no AddressSanitizer here")
    # Python and torch leak on purpose; only the kernels are under test.
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
