"""Ends a command, or removes folders, once whoever started this process has gone.

Run as a script, by an interpreter without packages: ``warden.py [FOLDER…] [-- COMMAND…]``. It
reads standard input, which ends with its parent, also when that is killed. Without a command it
waits for that; with one it ends with the command's exit code or signal.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TRIES, _PAUSE_S = 20, 0.1  # what was killed may still be writing


def main(folders: list[str], command: list[str]) -> int:
    """Wait; returns the exit code of the command, negative for a signal."""
    for number in _PASSED_ON:
        signal.signal(number, lambda *_: None)
    code = _run(command) if command else _wait_for_parent()
    for folder in folders:
        _remove(folder)
    return code


def _run(command: list[str]) -> int:
    """Run the command in a group of its own, which gets what signals come here."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, close_fds=False, process_group=0
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the command has them: here nobody uses them
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _signal_group(child.pid, number))
    threading.Thread(target=_outlive_nobody, args=(child.pid,), daemon=True).start()
    return child.wait()


def _outlive_nobody(group: int) -> None:
    _wait_for_parent()
    _signal_group(group, signal.SIGKILL)


def _wait_for_parent() -> int:
    while os.read(0, 4096):
        pass
    return 0


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _remove(folder: str) -> None:
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(_PAUSE_S)


def _end_like(code: int) -> None:
    """End as the command did: by its signal, which leaves no second core file."""
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    _end_like(main(words[:split], words[split + 1 :]))
