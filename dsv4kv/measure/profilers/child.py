"""Runs a profiler as a child that sees no secrets, and ends it when its time is up."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dsv4kv.errors import ProfileError
from dsv4kv.measure.environment import SPEED_VARIABLES
from dsv4kv.processes import Child

KEPT_VARIABLES = (
    *SPEED_VARIABLES,
    "CONDA_PREFIX",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "DSV4KV_CACHE_DIR",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
    "USER",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
)
"""All that a profiled program gets to see: reports of profilers keep the whole environment."""

GRACE_S = 15.0
"""How long a child may take to end after each signal: nsys writes its report first."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ChildTimeout(ProfileError):
    """The child did not end in time and was ended."""


def scrub(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a child may have."""
    return {name: environment[name] for name in KEPT_VARIABLES if name in environment}


def run_child(command: Sequence[str], log: Path, timeout_s: float) -> int:
    """Run a command to its end, its output in ``log``; returns its exit code.

    Ctrl-C ends the child and everything it started before it is passed on.

    Raises:
        ChildTimeout: It ran longer than ``timeout_s``.
        ProfileError: It cannot be started.
    """
    with log.open("ab") as output:
        try:
            child = Child(command, stdout=output, stderr=output, env=scrub(os.environ))
        except OSError as error:
            raise ProfileError(f"{command[0]} cannot be started: {error.strerror}.") from None
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildTimeout(
                f"{Path(command[0]).name} did not end within {timeout_s:g} s and was ended."
            ) from None
        finally:
            _end(child)


def ask(command: Sequence[str], timeout_s: float = 60.0) -> str:
    """What a command prints, on both streams; empty where it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=scrub(os.environ),
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _end(child: Child) -> None:
    """End the child and its group, politely first; nothing where it has ended."""
    for number in _SIGNALS:
        with suppress(subprocess.TimeoutExpired):
            child.signal(number)
            child.wait(GRACE_S)
            return
    child.kill()
