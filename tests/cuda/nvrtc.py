"""Versions of NVRTC in tests/compilers, each in processes that load it before cuda-bindings does.

What the compiler makes of the kernels depends on its version, and a machine with a GPU brings
its own.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ROOT / "build" / "compilers"
VERSIONS = ("13.0", "13.5")
"""Folders of tests/compilers, whose packages ``make`` installs there; the newest shows code."""


def run_with(version: str, *arguments: str) -> bytes:
    """What Python prints where everything compiles with that NVRTC; skips where it is absent.

    Compiled kernels are kept from run to run.
    """
    folder = COMPILERS / version / "nvidia" / "cu13" / "lib"
    if not folder.is_dir():
        pytest.skip(f"NVRTC {version} is not in {folder}: make build/compilers/installed")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(folder / "libnvrtc.so.13"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(COMPILERS / VERSIONS[-1]),  # disassemblers
        "DSV4KV_CACHE_DIR": f"{tempfile.gettempdir()}/dsv4kv-test-cubins-{os.getuid()}",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout


def main() -> None:
    """``python -m tests.cuda.nvrtc kernels …``: run ``dsv4kv`` with each of the versions."""
    for version in VERSIONS:
        sys.stdout.buffer.write(run_with(version, "-m", "dsv4kv", *sys.argv[1:]))


if __name__ == "__main__":
    main()
