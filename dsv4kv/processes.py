"""Children and temporary folders that end with this process, also when it is killed.

Both are in the care of a warden (``dsv4kv.warden``), a small process at the other end of a pipe,
which is closed whichever way this process ends.
"""

import errno
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dsv4kv import warden
from dsv4kv.files import temporary_place

OWN_TREE = Path(warden.__file__).resolve().parents[1]
"""The folder that this package is in."""

_WARDEN = (sys.executable, "-I", "-S", warden.__file__)


def python(*words: str) -> list[str]:
    """Command line of this Python that imports nothing from the current folder."""
    return [sys.executable, "-P", *words]


def with_package(environment: Mapping[str, str], tree: Path = OWN_TREE) -> dict[str, str]:
    """An environment in which ``python("-m", "dsv4kv")`` is the package in ``tree``.

    An empty part of ``PYTHONPATH``, which is the current folder, is dropped.
    """
    others = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(filter(None, [str(tree), *others]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


class Child:
    """A command in a process group of its own, which does not outlive this process.

    Signals that come from the terminal do not reach it but through ``signal``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it, with options of ``subprocess.Popen``.

        Raises:
            OSError: There is no such program.
        """
        if shutil.which(command[0]) is None:
            raise OSError(errno.ENOEXEC, "there is no such program", command[0])
        self._process = subprocess.Popen(
            [*_WARDEN, "--", *command],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code, negative for a signal; raises ``subprocess.TimeoutExpired``."""
        code = self._process.wait(timeout_s)
        self._let_go()
        return code

    def signal(self, number: int) -> None:
        """Pass a signal to the command and all of its group."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """Kill the command and all of its group; returns its exit code."""
        self._let_go()
        return self._process.wait()

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


@contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A new folder for this user alone, gone with the block or with this process.

    ``within``: a folder; None for where temporary files are kept.
    """
    folder = (within or temporary_place()) / f"{prefix}{secrets.token_hex(8)}"
    keeper = subprocess.Popen(  # before the folder is there: no moment is without one
        [*_WARDEN, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        keeper.stdin.close()
        keeper.wait()
