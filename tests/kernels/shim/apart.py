"""Runs a test's function in a process of its own, where kernels may abort or be sanitized."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]


def run_apart(call: str, *, sanitized: bool) -> subprocess.CompletedProcess[str]:
    """Run ``module:function('argument')``, given as ``module`` and what to call after a colon."""
    module, _, function = call.partition(":")
    name = function.partition("(")[0]
    command = [sys.executable, "-c", f"from {module} import {name}\n{function}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(_asan() if sanitized else {})}
    return subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
    )


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
