"""Runs a test's functions in processes of their own, where kernels may abort or be sanitized."""

import atexit
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.kernels.shim import twin

_ROOT = Path(__file__).resolve().parents[3]


def run_each_apart(
    module: str, calls: Sequence[str], *, sanitized: bool = False
) -> list[tuple[int, str]]:
    """Run calls of a module's functions, each on its own; how it ended (0: well) and what it said.

    They are forks of one process for all tests, which has imported torch and used no OpenMP yet.
    """
    server = _server(sanitized)
    assert server.stdin
    assert server.stdout
    found = []
    for call in calls:
        server.stdin.write(json.dumps([module, call]) + "\n")
        server.stdin.flush()
        code, said = json.loads(server.stdout.readline())
        found.append((code, said))
    return found


def assert_each_fails(module: str, said: Mapping[str, str], *, sanitized: bool = False) -> None:
    """Each call ends its process, which says why."""
    found = run_each_apart(module, list(said), sanitized=sanitized)
    for (code, output), message in zip(found, said.values(), strict=True):
        assert code != 0, message
        assert message in output


@functools.cache
def _server(sanitized: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"from {__name__} import _serve\n_serve()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(_asan() if sanitized else {})}
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    assert twin  # imported, and torch with it
    for line in sys.stdin:
        module, call = json.loads(line)
        names = vars(importlib.import_module(module))
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                _run(call, names, said.fileno())
            code = os.waitpid(child, 0)[1]
            said.seek(0)
            print(json.dumps([code, said.read().decode(errors="replace")]), flush=True)


def _run(call: str, names: dict[str, object], said: int) -> None:
    for stream in (1, 2):
        os.dup2(said, stream)
    code = 0
    try:
        eval(call, names)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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
